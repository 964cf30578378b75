"""Metrics for MLflow (`--log-to mlflow`). MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and its other variables apply."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slipway.protocol.durable import replace_file

# A server that does not answer would otherwise hold the training for minutes at each request. Yours win.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
ID = "mlflow.id"  # file in the run directory: every start continues the same run
LONGEST = 500  # characters of a parameter's value (mlflow.utils.validation.MAX_PARAM_VAL_LENGTH is 6000; old servers take 500)


class Mlflow:
    """A run of MLflow, whose metrics a thread of its own sends."""

    name, where = "MLflow", ""

    def __init__(self, run: Path, options: Mapping[str, Any]) -> None:
        """Begin the run, or continue it. Raises MLflow's errors, for example where its server does not answer."""
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        import mlflow

        self._mlflow = mlflow
        if (run / ID).exists():
            self._id = mlflow.start_run(run_id=(run / ID).read_text().strip()).info.run_id
        else:
            self._id = mlflow.start_run(run_name=run.name).info.run_id
            mlflow.log_params({name: str(value)[:LONGEST] for name, value in options.items()})
            replace_file(run / ID, self._id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step."""
        self._mlflow.log_metrics(dict(values), step=step, synchronous=False)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Take a text."""
        self._mlflow.log_text(text, f"{name}/{step}.txt")

    def write_picture(self, step: int, name: str, picture: torch.Tensor) -> None:
        """Take a picture, uint8 of shape (3, height, width)."""
        self._mlflow.log_image(picture.permute(1, 2, 0).cpu().numpy(), f"{name}/{step}.png")

    def close(self) -> None:
        """Send what is left."""
        self._mlflow.flush_async_logging()
        self._mlflow.end_run()
