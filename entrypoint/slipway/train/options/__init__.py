"""What a user may type after the name of a workload: one frozen dataclass per workload, and its command line.

The launcher calls `parse` before it starts anything, each worker calls it again. Nothing heavier than click is imported
here; PyYAML only where --config names a file.
"""

from collections.abc import Mapping
from types import MappingProxyType

from slipway.train.options.allreduce import AllreduceOptions
from slipway.train.options.command import parse
from slipway.train.options.common import Common, ConfigurationError, Options
from slipway.train.options.finetune import FinetuneOptions
from slipway.train.options.gpt import GptOptions
from slipway.train.options.linear import LinearOptions
from slipway.train.options.pipeline import PipelineOptions
from slipway.train.options.vision import VisionOptions

WORKLOADS: Mapping[str, type[Options]] = MappingProxyType(
    {
        kind.workload: kind
        for kind in (FinetuneOptions, GptOptions, PipelineOptions, VisionOptions, LinearOptions, AllreduceOptions)
    }
)

__all__ = [
    "WORKLOADS",
    "AllreduceOptions",
    "Common",
    "ConfigurationError",
    "FinetuneOptions",
    "GptOptions",
    "LinearOptions",
    "Options",
    "PipelineOptions",
    "VisionOptions",
    "parse",
]
