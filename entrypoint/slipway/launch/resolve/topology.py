"""Settings, schedulers and devices become one Topology: who we are in the job, and who said so. Pure.

Precedence, first match wins: command line, NNODES/NODE_RANK, PET_*, the schedulers that come before plain variables
(`before_plain`: RunPod, Azure ML, Slurm), plain RANK/WORLD_SIZE/MASTER_*, other schedulers, a single node. `Topology.values`
keeps every value with its source and the candidates it turned down.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slipway.launch.resolve import placement
from slipway.launch.resolve.advice import advise, means_cpu
from slipway.launch.resolve.devices import Devices, Gpu
from slipway.launch.resolve.foreign_values import explain_value
from slipway.launch.resolve.host import Host
from slipway.launch.resolve.rdzv import ENDPOINTS
from slipway.launch.resolve.runtimes import runtime_of
from slipway.launch.resolve.scheduler import JobShape, Reading
from slipway.launch.resolve.schedulers import SCHEDULERS, explain_unknown_start, read_schedulers, warn_of_half_start
from slipway.launch.resolve.settings import BY_NAME, SHORT_TOKEN, TOPOLOGICAL, NodeCount
from slipway.launch.resolve.sources import Claim, Sources, parse_claim
from slipway.protocol.binding import write_cores
from slipway.protocol.errors import LaunchError
from slipway.protocol.printable import rank_ranges

FREE_PORT = "a free port, for a single node"  # as the source of MASTER_PORT
SPARE = -1  # as the group rank of a spare node
OPEN = -1  # as the node rank that a launcher with RANK=auto finds out at the start (launch/rendezvous/claim.py)


class Value(NamedTuple):
    """A resolved value, who gave it, and whose values were turned down."""

    value: str
    source: str
    overruled: tuple[Claim, ...] = ()

    @property
    def claim(self) -> Claim:
        """The winning claim."""
        return Claim(self.value, self.source)

    @property
    def is_default(self) -> bool:
        """Whether nobody gave it."""
        return self.claim.is_default

    @classmethod
    def of(cls, first: Claim, others: Iterable[Claim]) -> "Value":
        """The value of the first claim, before which the others yield."""
        return cls(first.value, first.source, tuple(claim for claim in others if not claim.is_default))


class Topology(NamedTuple):
    """This node's place in the job. `threads` is None where the user's own OMP_NUM_THREADS stands. `restarts`: how often the
    scheduler has put the job back into its queue. `replaces`: it starts another launcher in the place of each that ends, as an
    Indexed Job of Kubernetes does, and counts for nobody how often. `requeues`: the scheduler that can only requeue the whole
    job when one of its nodes is lost, else empty.

    `nodes` run together, or before they have found each other may at most; `least` is how many must. `node_rank` names this
    node for the job's life, `group_rank` (torchrun's word) is its place among those that run, SPARE on a spare node. With
    RANK=auto both are unknown (OPEN) until the launcher has asked for its rank, as `claimant`. `identity` is what all launchers
    of this job have in common and those of others have not, if there is such a thing.
    """

    nodes: int
    least: int
    node_rank: int
    group_rank: int
    processes_per_node: int
    master_addr: str
    master_port: int
    store_port: int
    backend: str
    device: str
    gpus: tuple[Gpu, ...]  # none on the CPU; without their cores where processes are not bound to these
    scheduler: str
    job: str | None
    restarts: int
    replaces: bool
    requeues: str
    runtime: str
    threads: int | None
    process: placement.Process | None
    values: Mapping[str, Value]
    mended: Mapping[str, str]
    notes: tuple[str, ...]
    image: str | None = None  # the identity of Slipway's image, None outside
    rendezvous_id: str = ""  # of torchrun, for one attempt of one job
    spares: int = 0  # nodes that wait beside the others, to take the place of one that is lost
    container: str = (
        ""  # the id of the one that the launcher is the command of; the same when the engine starts it again
    )
    identity: str = ""
    claimant: str = ""

    @property
    def level(self) -> str:
        """`node`: this launcher starts torchrun; `process`: somebody else started one launcher per process."""
        return "process" if self.process else "node"

    @property
    def rank(self) -> int:
        """0 for the launcher that decides for all: that of node 0 or of the node in its place, or of process 0."""
        return self.process.rank if self.process else self.group_rank

    @property
    def process_rank(self) -> int | None:
        """The rank of the process that this launcher is for; None where it is for all of its node."""
        return self.process.rank if self.process else None

    @property
    def world_size(self) -> int:
        """The number of processes of the whole job."""
        return self.process.world_size if self.process else self.nodes * self.processes_per_node

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those of the processes on this node, none on a spare one; with a launcher per process that of its own."""
        if self.group_rank == SPARE:
            return ()
        first = self.group_rank * self.processes_per_node
        return (self.process.rank,) if self.process else tuple(range(first, first + self.processes_per_node))

    @property
    def rank_gpus(self) -> dict[int, Gpu]:
        """The GPU of each of these ranks; none on the CPU."""
        gpus = placement.place_gpus(self.gpus, self.processes_per_node)
        return dict(zip(self.ranks, gpus[self.process.local_rank :] if self.process else gpus, strict=False))

    @property
    def start(self) -> str | None:
        """What all launchers of one start of the scheduler's job have in common, and no other start of it; None without one."""
        return None if self.job is None else f"{self.job}, requeued {self.restarts} times"

    @property
    def may_have_begun(self) -> bool:
        """Whether this may not be the first launcher of the job here: what lies there under the job's name is its own run."""
        return self.replaces or bool(self.restarts)

    @property
    def is_spare(self) -> bool:
        """Whether this node waits, to take the place of one that is lost."""
        return self.group_rank == SPARE and not self.is_open

    @property
    def is_open(self) -> bool:
        """Whether the node rank is to be found out."""
        return self.node_rank == OPEN

    def at(self, node_rank: int, claimant: str) -> "Topology":
        """The same with the rank that was found out; its notes are those that depend on the rank."""
        size = NodeCount(self.least, self.nodes, self.spares)
        return self._replace(
            node_rank=node_rank,
            group_rank=node_rank if node_rank < self.nodes else SPARE,
            claimant=claimant,
            values={**self.values, "RANK": Value(str(node_rank), "RANK=auto")},
            notes=tuple(_spare_notes(size, node_rank, self.requeues)),
        )

    @property
    def size(self) -> str:
        """The number of nodes as one types it: `2`, `2:4` or `2+1`."""
        return f"{self.least}:{self.nodes}" if self.elastic else f"{self.nodes}{f'+{self.spares}' * (self.spares > 0)}"

    @property
    def elastic(self) -> bool:
        """Whether the job may run with fewer nodes than `nodes`."""
        return self.least < self.nodes

    @property
    def has_free_port(self) -> bool:
        """Whether any free port does for torchrun's store, since nobody else has to find it."""
        return self.values["MASTER_PORT"].source == FREE_PORT

    @property
    def arithmetic(self) -> str:
        """The line that every start prints."""
        nodes, inside = _count(self.nodes, "node", "nodes"), f"(inside your script WORLD_SIZE is {self.world_size})"
        world = _count(self.world_size, "process", "processes")
        if self.elastic:
            nodes, world = f"{self.least} to {nodes}", f"at most {world}"
            fewest = self.least * self.processes_per_node
            inside = f"(inside your script WORLD_SIZE is {fewest} to {self.world_size})"
        if self.world_size != self.nodes * self.processes_per_node:
            return f"{nodes}, {world} {inside}"  # a scheduler may spread its tasks unevenly
        what = "MIG slice" if self.gpus and all(gpu.is_slice for gpu in self.gpus) else "GPU"
        one, many = (what, f"{what}s") if self.device == "cuda" else ("CPU process", "CPU processes")
        if self.gpus and self.processes_per_node > len(self.gpus) and not self.process:
            one, many = "process", f"processes sharing {_count(len(self.gpus), what, f'{what}s')}"
        beside = f", and {_count(self.spares, 'spare node', 'spare nodes')} beside them" if self.spares else ""
        return f"{nodes} × {_count(self.processes_per_node, one, many)} = {world} {inside}{beside}"


def resolve_topology(sources: Sources, devices: Devices, host: Host) -> Topology:
    """Return this node's place in the job. Raises LaunchError (78, or 77 for GPUs that cannot be used)."""
    _refuse_nesting(sources.environ)
    readings = read_schedulers(sources.environ, host.fqdn)
    values = {name: _resolve(name, sources, readings) for name in TOPOLOGICAL}
    process = placement.find_process(sources, readings)
    if process:
        _place_process(process, values)
    else:
        _refuse_contradictions(sources, readings, values)
    if not process and values["WORLD_SIZE"].is_default and values["RANK"].is_default:
        _refuse_unknown(readings, sources.environ)
    size, node_rank = _read_place(sources, readings, values, process)
    least, nodes, spares = size
    alone = nodes == 1 and not process
    ignored = _ignore_meeting_place(values) if alone else []
    job = next((claim.value for reading in readings if (claim := reading.get("JOB"))), None)
    identity = _identify(sources, job)
    if node_rank == OPEN and not identity:
        raise LaunchError(
            f"{values['RANK'].claim.about('RANK')} takes a free rank in the job at MASTER_ADDR, so it must be certain which job "
            "that is. Name the job in the same way on all nodes: --rdzv-id NAME, --run-dir DIR, or a SLIPWAY_TOKEN."
        )
    port = _number("MASTER_PORT", values)
    if not port and not alone:
        raise LaunchError(
            f"{values['MASTER_PORT'].claim.about('MASTER_PORT')} means any free port, but all launchers must know the port. "
            "Set a number, or omit it to use 29500."
        )
    if nodes > 1 and values["MASTER_ADDR"].is_default:
        broken = next((reading.broken for reading in readings if reading.broken), "")
        counted = values["WORLD_SIZE"].claim
        typed = counted.is_called("WORLD_SIZE")  # who comes from torchrun counts processes by it
        meant = f"{counted.about('WORLD_SIZE')} counts nodes; for one machine unset it. " if typed else ""
        raise LaunchError(broken or meant + _master_missing(nodes, readings, sources.environ, host.runtime))
    if node_rank:  # 0 may listen there
        _refuse_unspecified(values["MASTER_ADDR"].claim)
    if alone and (not port or values["MASTER_PORT"].is_default):
        # Nobody has to find us, and 29500 would collide when two jobs share a host.
        port = host.free_port
        values["MASTER_PORT"] = Value(str(port), FREE_PORT)
    restarts = [claim.value for reading in readings if (claim := reading.get("RESTARTS"))]
    requeues = readings[0].scheduler.name if readings and not readings[0].scheduler.restarts_tasks else ""
    device, processes = placement.place_processes(values["NPROC_PER_NODE"].claim, devices, sources, process, host.shell)
    # With GPUs to spare a script may use several in each process, and which is its own affair.
    wanted = processes >= len(devices.gpus) and sources.value("SLIPWAY_CPU_BINDING") != "none"
    if device == "cpu" or not wanted or not placement.is_fair(devices.gpus, processes, devices.cpus):
        devices = devices._replace(gpus=tuple(gpu._replace(cores=()) for gpu in devices.gpus))
    return Topology(
        nodes=nodes,
        least=least,
        node_rank=node_rank,
        group_rank=node_rank if node_rank < nodes else SPARE,
        processes_per_node=processes,
        master_addr=str(parse_claim(BY_NAME["MASTER_ADDR"], values["MASTER_ADDR"].claim)),
        master_port=port,
        # The launchers of several nodes meet on MASTER_PORT itself; they may agree on another one for torchrun's store.
        store_port=port + (nodes > 1 and not process),
        backend=placement.choose_backend(sources, device, processes, devices, process, host.shell),
        device=device,
        gpus=devices.gpus if device == "cuda" else (),
        scheduler=readings[0].scheduler.name if readings else "none",
        job=job,
        restarts=max((int(count) for count in restarts if count.isdecimal()), default=0),
        replaces=any(reading.scheduler.replaces_nodes for reading in readings),
        requeues=requeues,
        runtime=host.runtime,
        threads=placement.choose_threads(sources, readings, devices, processes, process),
        process=process,
        values=values,
        mended=host.mended,
        notes=(
            *ignored,
            *_auto_notes(sources, node_rank, nodes, identity),
            *_spare_notes(size, node_rank, requeues),
            *_notes(sources, values, node_rank, nodes + spares, device, devices, process, host.shell),
            *_place_notes(devices, device, processes, process),
        ),
        image=host.image,
        spares=spares,
        container=host.container,
        identity=identity,
        rendezvous_id=sources.rdzv.id if alone else "",
    )


def _refuse_nesting(environ: Mapping[str, str]) -> None:
    if environ.get("TORCHELASTIC_RUN_ID"):
        raise LaunchError(
            "TORCHELASTIC_RUN_ID is set: this is already a worker of torchrun, and Slipway starts torchrun itself. "
            "Start `slipway run …` in torchrun's place, not inside it (or `unset TORCHELASTIC_RUN_ID`)."
        )


def _resolve(name: str, sources: Sources, readings: tuple[Reading, ...]) -> Value:
    setting = BY_NAME[name]
    early = setting.aliases or ((name,) if name == "NPROC_PER_NODE" else ())
    late = () if name in early else (name,)
    # The file only fills in what the environment leaves open, under whichever name.
    file = sources.from_file(*early), sources.from_file(*late)
    filled = bool(sources.from_environment(*early, *late))
    claims = [
        sources.option(setting),
        *sources.from_environment(*early),
        *(() if filled else file[0]),
        *(reading.get(name) for reading in readings if reading.scheduler.before_plain),
        *sources.from_environment(*late),
        *(file[0] if filled else ()),
        *file[1],
        *(reading.get(name) for reading in readings if not reading.scheduler.before_plain),
        Claim(setting.default, "default"),
    ]
    first, *others = [claim for claim in claims if claim]
    return Value.of(first, others)


def _number(name: str, values: Mapping[str, Value]) -> int:
    return int(str(parse_claim(BY_NAME[name], values[name].claim)))


def _place_process(process: placement.Process, values: dict[str, Value]) -> None:
    """Derive the node's place from the process's, where no scheduler says it."""
    for name, number in (("WORLD_SIZE", process.nodes), ("RANK", process.rank // process.local_world_size)):
        if process.source == "LOCAL_RANK":
            values[name] = Value(str(number), "one launcher per process")


def _read_place(
    sources: Sources, readings: tuple[Reading, ...], values: dict[str, Value], process: placement.Process | None
) -> tuple[NodeCount, int]:
    """Return the number of nodes, and the node rank, or OPEN. Raises LaunchError where the rank does not fit."""
    size = values["WORLD_SIZE"]
    nodes = _read_size(sources, readings, size.claim, process)
    if nodes.most > 1 and sources.rdzv.mistake:
        raise LaunchError(sources.rdzv.mistake)
    if nodes.most > 1 and values["RANK"].is_default and values["MASTER_ADDR"].source in ENDPOINTS:
        values["RANK"] = Value("auto", "the rendezvous endpoint, since no rank is given")
    rank = values["RANK"]
    found = parse_claim(BY_NAME["RANK"], rank.claim)
    if found == "auto" and process:
        raise LaunchError(
            f"{rank.claim.about('RANK')}, but here is one launcher per process (from {process.source}). Start one launcher per "
            "node, or leave it out."
        )
    if found == "auto":
        return nodes, OPEN if nodes.most > 1 else 0
    node_rank = int(str(found))
    if size.is_default and node_rank:
        raise LaunchError(
            f"{rank.claim.about('RANK')}, but WORLD_SIZE, the number of nodes, is not given. "
            "RANK counts nodes here; add WORLD_SIZE=N (or NNODES=N, or --nnodes N), or --standalone for a single node."
        )
    launchers = nodes.most + nodes.spares
    if node_rank >= launchers:
        allowed = "only 0" if launchers == 1 else "0 or 1" if launchers == 2 else f"0 to {launchers - 1}"
        among = f" with {_count(nodes.spares, 'spare node', 'spare nodes')} among them" if nodes.spares else ""
        raise LaunchError(
            f"{rank.claim.about('RANK')}, but {size.claim.about('WORLD_SIZE')} allows {allowed}{among}. RANK counts nodes here"
            f"{'; for a single node add --standalone' if launchers == 1 else f', from 0: set RANK={launchers - 1} on the last'}."
        )
    return nodes, node_rank


def _read_size(
    sources: Sources, readings: tuple[Reading, ...], claim: Claim, process: placement.Process | None
) -> NodeCount:
    """Return the number of nodes and of spare nodes. Raises LaunchError where there cannot be spare nodes, or not as many.

    A scheduler counts all nodes that it starts, spare ones among them; people count those of the job.
    """
    size = parse_claim(BY_NAME["WORLD_SIZE"], claim)
    assert isinstance(size, NodeCount)  # as its parser says
    typed = sources.claim("SLIPWAY_SPARES")
    spares = int(str(parse_claim(BY_NAME["SLIPWAY_SPARES"], typed)))
    about, counted = typed.about("SLIPWAY_SPARES"), claim.about("WORLD_SIZE")
    if size.spares and not typed.is_default and spares != size.spares:
        raise LaunchError(f"{about}, but {counted}. Leave one of them out, or make them equal.")
    if not (size.spares or spares):
        return size
    about = about if spares else counted
    if process:
        raise LaunchError(
            f"{about}, but here is one launcher per process (from {process.source}), and these wait for nobody. Start one "
            "launcher per node, or leave the spare nodes out."
        )
    if size.spares:
        return size
    if size.least < size.most:
        raise LaunchError(
            f"{about}, but {counted} is an elastic job, which continues without a node that is lost. Leave one of them out."
        )
    among = any(claim == reading.get("WORLD_SIZE") for reading in readings)
    nodes = size.most - spares if among else size.most
    if nodes < 2:
        left = f" counts {size.most}, spare nodes among them, which leaves {max(nodes, 0)}" if among else ""
        raise LaunchError(
            f"{about}, but {counted}{left}: a job with spare nodes has at least two nodes beside them. Start more nodes, or "
            "leave the spare nodes out."
        )
    return NodeCount(nodes, nodes, spares)


def _refuse_contradictions(sources: Sources, readings: tuple[Reading, ...], values: Mapping[str, Value]) -> None:
    """Raise LaunchError if the environment contradicts a `strict` scheduler; it shows both values, as either may be wrong."""
    for reading in (reading for reading in readings if reading.scheduler.strict):
        for name in ("RANK", "WORLD_SIZE"):
            setting, theirs = BY_NAME[name], reading.get(name)
            decided = sources.option(setting) or sources.from_environment(*setting.aliases)
            plain = sources.variable(name) or next(iter(sources.from_file(*setting.aliases)), None)
            if plain is None or theirs is None or decided:
                continue
            hook = reading.scheduler.hook.get(name, "")
            injected = Claim(sources.environ.get(hook, ""), hook)
            if plain.value not in (theirs.value, injected.value):
                also = f" and {hook} (what a container hook writes) {injected.value}" if injected.value else ""
                raise LaunchError(
                    f"{plain.about(name)}, but {theirs.source} says {theirs.value}{also}. "
                    f"Unset {name}, or decide with {setting.option} N."
                )


def _refuse_unknown(readings: tuple[Reading, ...], environ: Mapping[str, str]) -> None:
    """Raise LaunchError where this may be one of several whom nobody counts: each would be a job of its own."""
    broken = next((reading.broken for reading in readings if reading.broken), "")
    if why := broken or explain_unknown_start(environ):
        raise LaunchError(why)


def _ignore_meeting_place(values: dict[str, Value]) -> list[str]:
    """Leave out what cannot say where nodes meet, on a single node, which meets nobody; a line for each. What was typed stays."""
    notes = []
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        claim, setting = values[name].claim, BY_NAME[name]
        if claim.source in ENDPOINTS:  # which is where several meet
            values[name] = Value(setting.default, "default")
        if claim.is_typed:
            continue
        try:
            parse_claim(setting, claim)
        except LaunchError as error:
            if name == "MASTER_ADDR" or explain_value(name, claim.value):
                notes.append(f"warning: ignored, because a single node does not need it: {error}")
                values[name] = Value(setting.default, "default", (claim, *values[name].overruled))
    return notes


def _refuse_unspecified(claim: Claim) -> None:
    """Raise LaunchError where the address of node 0 is one on which a program listens: connected to, it is this machine."""
    with suppress(ValueError):
        address = ipaddress.ip_address(claim.value.strip().strip("[]"))
        mapped = getattr(address, "ipv4_mapped", None)
        if address.is_unspecified or (mapped and mapped.is_unspecified):
            raise LaunchError(
                f"{claim.about('MASTER_ADDR')} is an address to listen on and not one that another node can reach. Give the name "
                "or address of node 0: MASTER_ADDR=HOST, or --master-addr HOST."
            )


def _master_missing(nodes: int, readings: tuple[Reading, ...], environ: Mapping[str, str], runtime: str) -> str:
    hints = [*(reading.scheduler.address_advice(environ) for reading in readings), advise("MASTER_ADDR", runtime)]
    hint = next(filter(None, hints))
    return f"{nodes} nodes need MASTER_ADDR, the name or address of node 0, but it is not set: {hint}."


def _notes(
    sources: Sources,
    values: Mapping[str, Value],
    node_rank: int,
    nodes: int,
    device: str,
    devices: Devices,
    process: placement.Process | None,
    runtime: str,
) -> list[str]:
    notes = []
    if process:
        notes.append(
            f"one launcher per process (from {process.source}): this one runs rank {process.rank} itself, without "
            "torchrun; it does not wait for the others, and restarts nothing"
        )
    if nodes > 1 and node_rank != OPEN and values["RANK"].source.startswith(f"{sources.env_file_name} ("):
        notes.append(
            f"warning: RANK={values['RANK'].value} comes from {sources.env_file_name}. Such a file is often copied to all "
            "nodes, but RANK must differ on each; better give it with -e RANK=N or --node-rank N"
        )
    if (process.rank if process else node_rank) <= 0:  # it prints them for all, or may have to
        place = JobShape(nodes, values["WORLD_SIZE"].source, process.local_world_size if process else 1)
        notes += [note for scheduler in SCHEDULERS for note in scheduler.notes(sources.environ, place)]
    if nodes > 1 and 0 < len(sources.value("SLIPWAY_TOKEN")) < SHORT_TOKEN:
        notes.append(
            f"warning: SLIPWAY_TOKEN has fewer than {SHORT_TOKEN} characters, so somebody in this network may guess it. Make "
            "one: python -c 'import secrets; print(secrets.token_hex(16))'"
        )
    if values["WORLD_SIZE"].is_default:
        notes += warn_of_half_start(sources.environ)
    if device == "cpu" and not devices.gpus:
        chosen = not runtime_of(runtime).grants_gpus or means_cpu(sources.environ, values["NPROC_PER_NODE"].value)
        advice = "" if chosen else f"; {advise('gpus', runtime)}"
        notes.append(f"no GPU visible ({devices.reason}), training on CPU{advice}")
    return notes


def _identify(sources: Sources, job: str | None) -> str:
    """What tells this job from every other one at the same address, as people read it; empty where nothing does."""
    named = Path(sources.value("SLIPWAY_RUN_DIR")).name
    token = "SLIPWAY_TOKEN" if sources.value("SLIPWAY_TOKEN") else ""  # which is compared by itself
    known = (("--rdzv-id", sources.rdzv.id), ("job", job), ("run", named))
    return next((f"{what} {name}" for what, name in known if name), token)


def _auto_notes(sources: Sources, node_rank: int, nodes: int, identity: str) -> Iterator[str]:
    """How a node rank is found that nobody gave, and what of torchrun's rendezvous has no effect."""
    if node_rank == OPEN:
        yield (
            "RANK=auto: the launcher to which MASTER_ADDR leads is node 0, and gives ranks to the others of its job "
            f"({identity})"
        )
    if nodes > 1:
        yield from sources.rdzv.notes


def _spare_notes(size: NodeCount, node_rank: int, requeues: str) -> Iterator[str]:
    """What a job with spare nodes can do, as node 0 prints it for all, and what a spare node does."""
    if size.spares and not node_rank:
        node_0 = ""
        if requeues:
            node_0 = f" but node 0: when that is lost, the job has to be requeued ({requeues})"
        elif size.most <= size.spares:
            node_0 = (
                " but node 0: it can be replaced where there are more nodes than spare nodes, else two groups of them could "
                "continue without each other"
            )
        yield f"{_count(size.spares, 'spare node', 'spare nodes')} can take the place of any node{node_0}"
    if node_rank >= size.most:
        yield f"node {node_rank} is a spare node: it waits, and takes the place of a node that is lost"


def _place_notes(devices: Devices, device: str, processes: int, process: placement.Process | None) -> Iterator[str]:
    """What is particular about where each process runs."""
    places = dict(enumerate(placement.place_gpus(devices.gpus, processes) if device == "cuda" else ()))
    if process:
        places = {local: gpu for local, gpu in places.items() if local == process.local_rank}
    if any(gpu.is_slice for gpu in places.values()):
        shared = placement.share_gpus(devices.gpus, processes, process)
        yield (
            "MIG: each process sees its own slice alone, as device 0"
            f"{'; NCCL refuses slices of one GPU, so auto is gloo' if shared else ''}"
        )
    bound: dict[tuple[int, ...], list[int]] = {}
    for local, gpu in places.items():
        bound.setdefault(gpu.cores, []).append(local)
    if told := [f"{rank_ranges(ranks)} on cores {write_cores(cores)}" for cores, ranks in bound.items() if cores]:
        yield f"CPU binding: local rank {'; '.join(told)}, near their GPUs (--cpu-binding none leaves it to the system)"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
