"""Where the tests of containers run: on the cluster of the tests with the stand-in, or on a site that has pyxis.

For the second set SLIPWAY_TEST_PYXIS=1, SLIPWAY_TEST_PYXIS_IMAGE to a reference of the image (registry#path:tag, or a .sqsh
file that all nodes see) and SLIPWAY_TEST_PYXIS_SHARED to a folder that all nodes see. The site needs two free nodes.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import REPOSITORY, Cluster, Job


@dataclass(frozen=True)
class Site:
    """A cluster, the image there, who submits, and with which variables."""

    cluster: Cluster
    image: str
    user: int = 0
    variables: Mapping[str, str] | None = None

    @property
    def real(self) -> bool:
        return not self.user

    @property
    def team(self) -> Path:
        """The folder for runs and caches of who submits."""
        return self.cluster.shared / "team"

    def srun(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the image, with these options of srun before it; it must succeed."""
        done = self.try_srun(*words, **variables)
        assert not done.returncode, f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def try_srun(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """The same, whatever comes of it."""
        given = {**(self.variables or {}), **variables}
        return self.cluster.command(
            "srun", f"--container-image={self.image}", *words, user=self.user, check=False, **given
        )

    def type_in(self, command: str) -> str:
        """What a shell of who submits prints for a command as it was told; it must be well."""
        return self.cluster.type_in(command, user=self.user, **(self.variables or {}))

    def train(self, *words: str, options: tuple[str, ...] = ("--nodes=2",), **variables: str) -> Job:
        """Submit slurm/train.sbatch with these words for `slipway run`."""
        given = {
            "NPROC_PER_NODE": "cpu",  # GPUs that Slurm grants here are but device nodes
            "IMAGE": self.image,
            "SHARED": str(self.team),
            **(self.variables or {}),
            **variables,
        }
        return self.cluster.sbatch(*options, str(REPOSITORY / "slurm/train.sbatch"), *words, user=self.user, **given)


class ForeignCluster(Cluster):
    """A cluster of somebody else's: we are a user on its login node."""

    def __init__(self, shared: Path) -> None:
        super().__init__(shared, "as the site has it")
        self.shared = shared
        (shared / "work").mkdir(parents=True, exist_ok=True)

    def environment(self, **variables: str) -> dict[str, str]:
        return {**os.environ, **variables}

    def _joining(self, host: str, *words: str) -> list[str]:
        return ["env", f"--chdir={self.shared}/work", *words]

    def _tail(self) -> str:
        return ""
