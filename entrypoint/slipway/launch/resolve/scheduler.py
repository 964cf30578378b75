"""What a scheduler says about a job, and how it is read from its variables.

A reading's claims are keyed by our own names: WORLD_SIZE and RANK count nodes; JOB names the job, RESTARTS counts how often it
was requeued; PROCESS_RANK, PROCESSES, LOCAL_RANK and LOCAL_PROCESSES are there where the launcher was started once per process.

To add a scheduler (docs/extending.md shows the first three steps in full):

1. Its record in `SCHEDULERS` in `launch/resolve/schedulers.py`, that of a cloud in `launch/resolve/clouds.py`. Its position:
   values of schedulers with `before_plain` come before the plain RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, those of all
   others after these; within each group the first record that provides a value counts. One that sets variables of another
   scheduler, such as PMI_RANK, stands before it. One that can run inside a Slurm step also has to be in `_without_outer`.
2. Its environment in `CASES` of `tests/unit/environments.py`, and rows in `test_schedulers.py` in `tests/unit/launch/resolve`, of
   a cloud in `test_topology.py` there (where it leaves `UNKNOWN`). `test_scheduler_seam.py` has an example with most fields.
3. A row in docs/coming-from.md, with `before_plain` also in its order of precedence; the list in CHANGELOG; the diffs in
   docs/extending.md, which show the ends of `SCHEDULERS` and of `CASES`.
4. If users start tasks with a command of its own, such as srun: `AROUND` in `launch/resolve/starters.py`. If it replaces single
   nodes (`replaces_nodes`): the sentences that name only Kubernetes in docs/rendezvous.md, fault-tolerance.md and internals.md.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from slipway.launch.resolve.sources import Claim

Claims = dict[str, Claim]


class Scheduler(NamedTuple):
    """Everything that Slipway knows about one scheduler. No other module asks which scheduler it is.

    Its marks say whether it is here: one of them is set, and so is all that it `needs`.
    """

    name: str
    marks: tuple[str, ...]
    table: Mapping[str, tuple[str, ...]]  # our name -> its variables, of which the first that is set counts
    # Adds to the claims what has to be computed, from the environment and this host's full name. Raises LaunchError where
    # node 0's address cannot be read from what the scheduler says.
    derive: Callable[[Mapping[str, str], str, Claims], None] | None = None
    strict: bool = False  # RANK and WORLD_SIZE of the environment must not contradict it
    needs: tuple[str, ...] = ()
    before_plain: bool = False  # its values win over those of RANK, WORLD_SIZE and MASTER_ADDR themselves
    full_name: bool = False  # `derive` needs the full host name, which costs a question to the name server
    replaces_nodes: bool = False  # it starts a lost node again, elsewhere and with an empty disk
    restarts_tasks: bool = True  # False: it cannot start one node of a running job again, only requeue the job
    # Our variable -> the one whose value a container hook copies into it.
    hook: Mapping[str, str] = MappingProxyType({})
    gpus: str = ""  # the variable with the number of this node's GPUs that it granted to the job
    cores: str = ""  # the variable with the number of this node's cores that it granted to the job
    cores_per_task: str = ""  # the variable with the number of cores of each process that it started
    # What helps where several nodes have no MASTER_ADDR.
    address_advice: Callable[[Mapping[str, str]], str] = lambda environ: ""
    # Lines that node 0 prints, from the environment and the job's place.
    notes: "Callable[[Mapping[str, str], JobShape], Iterator[str]]" = lambda environ, place: iter(())

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Whether it left its marks in the environment."""
        return any(environ.get(mark) for mark in self.marks) and all(environ.get(name) for name in self.needs)


class JobShape(NamedTuple):
    """What a scheduler's notes depend on: the number of nodes with the spare ones, who gave it, and the launchers here."""

    nodes: int
    nodes_source: str
    launchers: int


class Reading(NamedTuple):
    """What one scheduler says."""

    scheduler: Scheduler
    claims: Mapping[str, Claim]
    broken: str = ""  # why node 0's address cannot be read from what it says

    def get(self, name: str) -> Claim | None:
        """The claim about one of our names, or None."""
        return self.claims.get(name)
