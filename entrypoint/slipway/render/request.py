"""What is asked of a job file, whatever its kind. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

MARGIN = 10  # s between the launcher's grace and that of whoever ends its container, for the verdict


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What the file shall say; where nothing was asked for (None, or empty) it says what its template does.

    Fields are called as the options are. `env` are the settings that it holds, `secrets` names of those that are given but not
    written down.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    grace: int  # s
    name: str | None = None
    image: str | None = None
    nodes: int | None = None
    spares: int = 0  # spare nodes beside them
    gpus: int | None = None  # per node
    time: str | None = None

    @property
    def launchers(self) -> int | None:
        """How many nodes are started, spare ones among them."""
        return self.nodes + self.spares if self.nodes else None


def without_variables(text: str) -> str:
    """The text as it is written where Kubernetes or Compose would replace variables in it."""
    return text.replace("$", "$$")
