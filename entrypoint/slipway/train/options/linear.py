"""Options of `linear`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from slipway.train.options.common import COUNT, Common, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearOptions(Common):
    """Train one linear layer on synthetic binary labels: the smallest data-parallel job."""

    workload: ClassVar[str] = "linear"
    # fp32, so that any number of processes ends with the same weights; one small layer gains nothing from less.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "": {"epochs": 10, "batch_size": 32, "lr": 0.1, "precision": "fp32"}
    }

    input_size: int = option(20, COUNT, "Numbers per sample.")
    dataset_size: int = option(4096, COUNT, "Training samples; a quarter as many are drawn for the evaluation.")
