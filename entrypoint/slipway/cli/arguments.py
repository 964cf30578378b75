"""What was typed: the launcher's options, the workload with its own, and from them and this machine a job."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from slipway.cli.launching import hyphens, launcher_options, misplaced, take_options
from slipway.launch.resolve.catalog import WORKLOADS, Workload, find_workload, require_module, spawned
from slipway.launch.resolve.connectivity import interface_towards, is_loopback, listen, loopback_address
from slipway.launch.resolve.container_checks import (
    default_runs,
    fleeting_file,
    other_image,
    results_folder,
    unseen,
    unseen_arguments,
    warnings,
)
from slipway.launch.resolve.devices import Devices, read_devices
from slipway.launch.resolve.host import Host, read_host
from slipway.launch.resolve.job_spec import Job, divide_processes, require_all_sizes
from slipway.launch.resolve.packages import locate_module, read_cuda, require_usable_gpus
from slipway.launch.resolve.plan import Plan, interfaces, make_plan
from slipway.launch.resolve.settings import SETTINGS
from slipway.launch.resolve.sources import Sources, read_sources
from slipway.launch.resolve.topology import Topology, resolve_topology
from slipway.options.paths import MissingPathError
from slipway.protocol.errors import LaunchError

if TYPE_CHECKING:
    from slipway.options import Options


class Program(NamedTuple):
    """What each process runs: the workload with its arguments, and what these say where it is one of ours. `typed` is what was
    typed, or set in WORKLOAD, up to the arguments.
    """

    workload: Workload
    arguments: list[str]
    options: "Options | None"
    typed: str


def read_job(words: Sequence[str], options: dict[str, Any]) -> Job:
    """From the command line and this machine to a job. Raises LaunchError or click.UsageError; starts nothing."""
    words = list(words)
    if words and words[0] in WORKLOADS:
        late, rest = take_options(words[1:], launcher_options())
        options, words = options | late, [words[0], *rest]
    environ = dict(os.environ)
    host = read_host(environ)
    sources = read_sources(options, {"SLIPWAY_RUNS": default_runs(host)})
    try:
        program = read_program(words, sources)
    except LaunchError as error:
        raise LaunchError(f"{error}{unseen(host, error.missing)}", error.code) from None
    except MissingPathError as error:
        raise click.BadParameter(error.message + unseen(host, error.missing), error.ctx, error.param) from None
    if program.workload.spawned and program.options:
        sources = _count_processes(sources, program.options)
    devices = read_devices(environ)
    topology = read_topology(program, sources, devices, host)
    if topology.device == "cuda" and sys.executable in program.workload.command:
        require_usable_gpus(devices, read_cuda(locate_module("torch")), platform.machine())
    if topology.backend == "mpi":
        _require_mpi()
    if topology.rank == 0:
        listen(
            topology.master_port, loopback=loopback_address(topology.master_addr)
        ).close()  # in use? then say by whom
    data = _hash_stdlib if program.options and program.options.reads_stdlib else None
    plan = make_plan(topology, program.workload, program.arguments, sources)
    return Job(plan, sources, devices, environ, data, host, program.options)


def read_program(words: Sequence[str], sources: Sources) -> Program:
    """The workload or program that was typed, or else that WORKLOAD names, with its arguments. Raises LaunchError."""
    named = list(words) or shlex.split(sources.value("WORKLOAD"))
    try:
        workload, arguments = find_workload(named)
        if named[0] == "-m":
            claim = sources.variable("PYTHONPATH")
            require_module(named[1], ["", *(claim.value.split(os.pathsep) if claim else ())])
    except LaunchError as error:
        set_to = "" if words else f"{sources.claim('WORKLOAD').about('WORKLOAD')}: "
        raise LaunchError(f"{set_to}{error}", error.code, missing=error.missing) from None
    options = check_arguments(workload.name, arguments) if workload.builtin else None
    if options and options.values().get("launcher") == "spawn":
        workload = spawned(workload)
    return Program(workload, arguments, options, shlex.join(named[: len(named) - len(arguments)]))


def read_topology(program: Program, sources: Sources, devices: Devices, host: Host) -> Topology:
    """Where the processes run, with notes on all that is odd. Raises LaunchError where the program cannot run so."""
    try:
        topology = resolve_topology(sources, devices, host)
    except LaunchError as error:  # which may come of a name that nobody understood
        raise LaunchError(" ".join((str(error), *sources.slips)), error.code) from None
    workload, options = program.workload, program.options
    if workload.spawned:
        _require_one_machine(topology)
    if options and workload.staged:
        topology = _divide(topology, options)
    if options:
        given = options.values().get("batch_size") if "batch_size" in options.given else None
        stages, accumulate = (options.values().get(name, 1) for name in ("stages", "accumulate"))
        require_all_sizes(topology, stages, given, accumulate)
        require_possible(options, topology, stages, uneven=bool(sources.parsed("SLIPWAY_ALLOW_UNEVEN")))
    notes = [*sources.file_lines, *(f"warning: {slip}" for slip in sources.slips)]
    notes += [*topology.notes, *warnings(host, topology, results_folder(sources), workload.builtin)]
    if options and (export := options.values().get("export")):
        notes += filter(None, [fleeting_file(host, Path(export))])
    notes += filter(None, [other_image(host, claim.value if (claim := sources.variable("IMAGE")) else "")])
    if not workload.builtin:
        notes += [*unseen_arguments(host, program.arguments), *misplaced(program.arguments, program.typed)]
    return topology._replace(notes=tuple(notes))


def foresee_interfaces(job: Job) -> Plan:
    """The plan with the network interface that several nodes will most likely use; the rendezvous knows for sure."""
    topology = job.plan.topology
    if topology.nodes == 1 or topology.process:
        return job.plan
    name = interface_towards(topology.master_addr, one_machine=is_loopback(topology.master_addr))
    return job.plan._replace(env={**job.plan.env, **(interfaces(name, job.environ) if name else {})})


def _count_processes(sources: Sources, chosen: "Options") -> Sources:
    """Add `--world-size`, which counts processes where they are spawned, as what `--nproc-per-node` is to torchrun."""
    name, count = "NPROC_PER_NODE", chosen.values()["world_size"]
    if count is None:
        return sources
    if name in sources.options:
        raise click.UsageError(
            "With --launcher spawn, --world-size and --nproc-per-node mean the same; type one of them."
        )
    origins = {**sources.origins, name: f"{chosen.sources['world_size']} (--world-size)"}
    return sources._replace(options={**sources.options, name: str(count)}, origins=origins)


def require_possible(chosen: "Options", topology: Topology, stages: int, *, uneven: bool) -> None:
    """Raise LaunchError where a training cannot begin on this device, or on as many processes.

    How many these are is only known once the nodes have met where nodes may be `uneven`, or fewer.
    """
    from slipway.options import Common  # torch-free
    from slipway.protocol.mistake import ConfigurationError

    if not isinstance(chosen, Common):
        return
    try:
        chosen.require_device(topology.device)
        if topology.nodes == 1 or not (uneven or topology.elastic):
            chosen.divide_batch(topology.world_size // stages, "processes" if stages == 1 else "pipelines")
    except ConfigurationError as error:
        raise LaunchError(str(error)) from None


def _divide(topology: Topology, chosen: "Options") -> Topology:
    """Return the topology with what `--stages` makes of its processes. Raises LaunchError for what cannot work."""
    from slipway.options.pipeline import PipelineOptions  # torch-free

    assert isinstance(chosen, PipelineOptions)
    return divide_processes(topology, chosen.stages, chosen.possible_stages(topology.world_size))


def _require_one_machine(topology: Topology) -> None:
    """Raise LaunchError where processes cannot be spawned from one of them."""
    if topology.process:
        raise LaunchError(
            f"--launcher spawn starts all processes itself, and here is one launcher per process already (from "
            f"{topology.process.source}). Leave it out."
        )
    if topology.nodes > 1:
        several = topology.values["WORLD_SIZE"].claim.about("WORLD_SIZE")
        raise LaunchError(
            f"--launcher spawn starts processes on one machine only, and {several} counts several. "
            "Leave --launcher out: torchrun starts them on each."
        )


def check_arguments(workload: str, arguments: Sequence[str]) -> "Options":
    """Return the options of one of our workloads; a mistake in them is told before anything starts."""
    from slipway.options import WORKLOADS as KINDS  # torch-free
    from slipway.options import parse
    from slipway.protocol.mistake import ConfigurationError

    try:
        options = parse(KINDS[workload], arguments)
        options.foresee()
    except ConfigurationError as error:
        raise LaunchError(str(error), missing=error.missing) from None
    except click.NoSuchOption as error:
        import difflib  # only where somebody mistyped: it takes milliseconds

        ours = [option.opts[0] for option in launcher_options() if not getattr(option, "hidden", False)]
        if error.option_name in ours:  # of a command line they are taken before
            name = next((row.name for row in SETTINGS if row.option == error.option_name), "")
            instead = f"set {name}" if name else "type it"
            raise LaunchError(
                f"WORKLOAD has {error.option_name}, which is an option of the launcher, and only takes a workload with its own. "
                f"Leave it out there, and {instead}."
            ) from None
        near = difflib.get_close_matches(error.option_name, [*(error.possibilities or ()), *ours], n=3)
        raise click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx) from None
    return options


def options_lines(job: Job) -> list[str]:
    """The options of one of our workloads with their values and where those came from; none of a user's program."""
    if job.options is None:
        return []
    from slipway.options.command import option_lines  # torch-free

    return option_lines(job.options)


def options_json(job: Job) -> dict[str, Any]:
    """The same by name."""
    if job.options is None:
        return {}
    sources = job.options.sources
    return {hyphens(name): {"value": value, "source": sources[name]} for name, value in job.options.values().items()}


def _hash_stdlib() -> str:
    """The hash of the text that Python's own library is, for the other nodes to compare."""
    from slipway.train.text.files import read_stdlib

    return read_stdlib().sha256


def _require_mpi() -> None:
    asked = "import sys, torch.distributed as d; sys.exit(not d.is_mpi_available())"
    import subprocess  # it takes two milliseconds, which most starts save

    if subprocess.run([sys.executable, "-P", "-c", asked], check=False).returncode:
        raise LaunchError(
            "This torch was built without the mpi backend. Use --backend nccl (GPUs) or gloo (CPUs); to start from mpirun, "
            "start one launcher per process: `mpirun -n 8 -x MASTER_ADDR=HOST slipway run …` uses nccl or gloo between them."
        )
