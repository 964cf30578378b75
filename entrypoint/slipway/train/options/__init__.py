"""What a user may type after the name of a workload: one frozen dataclass per workload, and its command line.

The launcher calls `parse` before it starts anything, each worker calls it again. Nothing heavier than click is imported
here; PyYAML only where --config names a file.
"""

from collections.abc import Mapping
from types import MappingProxyType

from slipway.train.options.command import parse
from slipway.train.options.common import Common, ConfigurationError, Options
from slipway.train.options.gpt import GptOptions
from slipway.train.options.linear import LinearOptions

WORKLOADS: Mapping[str, type[Options]] = MappingProxyType({kind.workload: kind for kind in (GptOptions, LinearOptions)})

__all__ = ["WORKLOADS", "Common", "ConfigurationError", "GptOptions", "LinearOptions", "Options", "parse"]
