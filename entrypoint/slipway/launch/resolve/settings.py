"""Every setting once: its variable, option, default, parser and help. sources.py reads their values."""

import re
import shlex
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple

from slipway.launch.resolve.foreign_values import ForeignValueError, parse_address
from slipway.options.paths import parse_path
from slipway.store.address import SUPPORTED, parse_store

SHORT_TOKEN = 16  # characters; a shorter SLIPWAY_TOKEN may be guessed by somebody who has seen one proof of it
TOPOLOGICAL = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE")


class Setting(NamedTuple):
    """One row of the table. `aliases` are further variables that mean the same and win over `name`."""

    name: str
    option: str
    default: str
    parse: Callable[[str], object]
    help: str
    metavar: str = "TEXT"
    flag: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Those of its values that are typed as they stand: `auto`, `none`."""
        return [word for word in self.metavar.split("|") if word.islower()]


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            raise ValueError("a whole number is needed")
        number = int(text)
        if not low <= number <= high:
            raise ValueError(f"{low} to {high} are allowed")
        return number

    return parse


def _choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{', '.join(names)} are allowed")
        return text

    return parse


class NodeCount(NamedTuple):
    """How many nodes a job has: at `least` and at `most`, and how many `spares` wait beside them."""

    least: int
    most: int
    spares: int = 0


def _nodes(text: str) -> NodeCount:
    """The number of nodes: one number, torchrun's MIN:MAX, or NODES+SPARES."""
    number = _number(1, 65_536)
    nodes, plus, spares = text.partition("+")
    if plus:
        if ":" in text:
            raise ForeignValueError(
                "an elastic job, MIN:MAX, continues without a lost node; no spare nodes are needed: leave them out"
            )
        if not re.fullmatch(r"[0-9]+\+[0-9]+", text):
            raise ForeignValueError("NODES+SPARES is needed, such as 2+1")
        count = NodeCount(number(nodes), number(nodes), _number(0, 65_536)(spares))
        if count.spares and count.most == 1:
            raise ForeignValueError(f"at least two nodes are needed beside spare ones, such as 2+{count.spares}")
        return count
    low, colon, high = text.partition(":")
    least, most = (number(part) for part in (low, high if colon else low))
    if least > most:
        raise ForeignValueError(f"MIN:MAX is needed, the smaller number of nodes first. Type --nnodes {high}:{low}")
    return NodeCount(least, most)


def _number_or(low: int, high: int, *words: str) -> Callable[[str], int | str]:
    def parse(text: str) -> int | str:
        if text in words:
            return text
        try:
            return _number(low, high)(text)
        except ValueError:
            allowed = ", ".join([f"a number from {low} to {high}", *words[:-1]])
            raise ValueError(f"{allowed} or {words[-1]} is needed") from None

    return parse


def _words(text: str) -> str:
    if not shlex.split(text):  # ValueError for a quote without its end, too
        raise ValueError("the name of a workload or script is needed, and its arguments")
    return text


def _web_address(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^\s/?#]+\S*", text):
        raise ValueError("an address that begins with https:// or http:// is needed")
    return text


def _switch(text: str) -> bool:
    if text.lower() not in ("0", "1", "true", "false", "yes", "no", "on", "off"):
        raise ValueError("1 or 0 are allowed, as are true or false, yes or no, on or off")
    return text.lower() in ("1", "true", "yes", "on")


SETTINGS = (
    Setting(
        "WORLD_SIZE",
        "--nnodes",
        "1",
        _nodes,
        "Number of nodes (not of processes), MIN:MAX for a job that may shrink and grow, or NODES+SPARES for a job with spare "
        "nodes.",
        "N|MIN:MAX|N+SPARES",
        aliases=("NNODES",),
    ),
    Setting(
        "RANK",
        "--node-rank",
        "0",
        _number_or(0, 65_535, "auto"),
        "This node's rank: 0 to nodes-1, and the following numbers on spare nodes. auto: all nodes start with the same command; "
        "the machine at MASTER_ADDR is node 0, and gives ranks to the others.",
        "N|auto",
        aliases=("NODE_RANK",),
    ),
    Setting("MASTER_ADDR", "--master-addr", "127.0.0.1", parse_address, "Name or address of node 0.", "HOST"),
    Setting(
        "MASTER_PORT",
        "--master-port",
        "29500",
        _number(0, 65_534),
        "Port on node 0 where the launchers meet before training; torchrun's store uses the next port. A job on a single "
        "node uses a free port.",
        "PORT",
    ),
    Setting(
        "NPROC_PER_NODE",
        "--nproc-per-node",
        "auto",
        _number_or(1, 1024, "auto", "gpu", "cpu"),
        "Processes on this node: a number, auto (one per GPU; without GPUs two on the CPU, or one if there is only one core), "
        "gpu (one per GPU, or an error without GPUs), cpu (one per core).",
        "N|auto|gpu|cpu",
    ),
    Setting("WORKLOAD", "", "gpt --preset tiny", _words, "What `slipway run` trains when no name is given."),
    Setting(
        "SLIPWAY_BACKEND",
        "--backend",
        "auto",
        _choice("auto", "nccl", "gloo", "mpi"),
        "Communication. auto: nccl with GPUs, gloo without.",
        "auto|nccl|gloo|mpi",
    ),
    Setting(
        "SLIPWAY_RUNS", "--runs", "runs", parse_path, "Folder that contains the runs; in the image /checkpoints.", "DIR"
    ),
    Setting(
        "SLIPWAY_RUN_DIR",
        "--run-dir",
        "",
        parse_path,
        "Run directory to use instead of a new one in the folder of runs.",
        "DIR",
    ),
    Setting(
        "SLIPWAY_RESUME",
        "--resume",
        "none",
        parse_path,
        "none: start a new run. auto: resume the run in --run-dir; without --run-dir, the run of the scheduler's job, or else "
        "the newest run of the workload. PATH: start a new run from the run or snapshot at PATH. A container that is "
        "started again resumes its own run.",
        "auto|none|PATH",
    ),
    Setting(
        "SLIPWAY_STORE",
        "--store",
        "",
        parse_store,
        "Copy the run's snapshots and records to a store, in the background, and resume from there where this disk is empty: "
        f"{SUPPORTED}.",
        "URL",
    ),
    Setting(
        "SLIPWAY_STORE_LIMIT",
        "--store-limit",
        "0",
        _number(0, 1_000_000),
        "Most megabytes per second that each node copies to the store; 0 means no limit.",
        "MB",
    ),
    Setting(
        "SLIPWAY_STORE_PARALLEL",
        "--store-parallel",
        "4",
        _number(1, 64),
        "Requests to the store at once, on each node; each of them holds 64 MiB of memory.",
        "N",
    ),
    Setting(
        "SLIPWAY_GRACE_SECONDS",
        "--grace-seconds",
        "110",
        _number(1, 86_400),
        "Seconds that a stopped job is given to save its snapshot before it is killed.",
        "S",
    ),
    Setting(
        "SLIPWAY_AFTER_FAILURE_SECONDS",
        "--after-failure-seconds",
        "auto",
        _number_or(1, 86_400, "auto"),
        "Seconds until the other ranks are ended after one failed: auto is 30 for your own script, and at most 5 for Slipway's "
        "workloads.",
        "S|auto",
    ),
    Setting(
        "SLIPWAY_MAX_RESTARTS",
        "--max-restarts",
        "auto",
        _number_or(0, 1000, "auto"),
        "How often in a row, without progress, a failed job is restarted: auto is 3 for Slipway's workloads and 0 for your own "
        "script.",
        "N|auto",
    ),
    Setting(
        "SLIPWAY_PROGRESS_SECONDS",
        "--progress-seconds",
        "600",
        _number(1, 999_999),
        "Seconds after which an attempt of your own script counts as progress, which resets the count of restarts.",
        "S",
    ),
    Setting(
        "SLIPWAY_WARM",
        "",
        "1",
        _switch,
        "Keep a process with torch imported, from which a failed job restarts in a second or two, your own script too; 0 turns "
        "this off.",
        "1|0",
    ),
    Setting(
        "SLIPWAY_HANG_SECONDS",
        "--hang-seconds",
        "auto",
        _number_or(0, 86_400, "auto"),
        "Seconds without progress after which a job counts as hanging; 0 means never. Saving and evaluation may take a "
        "multiple, and starting has its own limit (--start-seconds). auto is 300 for Slipway's workloads and 600 for your own "
        "script.",
        "S|auto",
    ),
    Setting(
        "SLIPWAY_START_SECONDS",
        "--start-seconds",
        "auto",
        _number_or(0, 86_400, "auto"),
        "Takes the place of --hang-seconds until one of Slipway's workloads has done its first step. The limit is 3 times "
        "this for imports and first connections, 4 times for loading a snapshot, 6 times for the first step and 12 times for "
        "preparing data; 0 means never. auto is 300, or --hang-seconds if that is longer.",
        "S|auto",
    ),
    Setting(
        "SLIPWAY_ON_HANG",
        "--on-hang",
        "report",
        _choice("report", "end"),
        "What to do if your own script hangs. report: name the rank and the line; end: also end the script (exit code 76).",
        "report|end",
    ),
    Setting(
        "SLIPWAY_WATCH",
        "",
        "1",
        _switch,
        "Run a watcher in each worker, which reports its stack for hangs and `slipway stacks`; 0 turns it off.",
        "1|0",
    ),
    Setting(
        "SLIPWAY_SPOT",
        "",
        "auto",
        _choice("off", "auto", "aws", "gcp", "azure"),
        "Watch for interruption notices of a spot machine, and save and leave before it is taken back; auto asks "
        "only a cloud that the machine's firmware (DMI) identifies for certain.",
        "off|auto|aws|gcp|azure",
    ),
    Setting(
        "SLIPWAY_SPOT_APPROVE",
        "",
        "0",
        _switch,
        "On Azure, approve a notice's event once this node has saved and left, so that its machine may go before the deadline.",
        "1|0",
    ),
    Setting(
        "SLIPWAY_RENDEZVOUS_TIMEOUT",
        "--rendezvous-timeout",
        "600",
        _number(1, 86_400),
        "Seconds that the nodes of a job wait for each other before it starts.",
        "S",
    ),
    Setting(
        "SLIPWAY_HEARTBEAT_TIMEOUT",
        "--heartbeat-timeout",
        "30",
        _number(2, 3600),
        "Seconds without a heartbeat after which a node counts as lost; node 0's value applies to all nodes.",
        "S",
    ),
    Setting(
        "SLIPWAY_ELASTIC_WINDOW",
        "--elastic-window",
        "30",
        _number(0, 86_400),
        "With WORLD_SIZE=MIN:MAX: seconds to wait for more nodes after the smallest number is present. With spare nodes: seconds "
        "to wait for a node that is late, if a spare one can take its place.",
        "S",
    ),
    Setting(
        "SLIPWAY_SPARES",
        "--spares",
        "0",
        _number(0, 65_536),
        "Number of spare nodes, the same as SPARES in WORLD_SIZE=NODES+SPARES. A number of nodes from a scheduler includes them.",
        "N",
    ),
    Setting(
        "SLIPWAY_TOKEN",
        "",
        "",
        str,
        f"A secret that all nodes of a job share, at least {SHORT_TOKEN} characters; launchers without it are refused.",
    ),
    Setting(
        "SLIPWAY_METRICS_PORT",
        "--metrics-port",
        "0",
        _number(0, 65_535),
        "Serve Prometheus metrics (OpenMetrics) for this node's ranks on this port; 0 disables it.",
        "PORT",
    ),
    Setting(
        "SLIPWAY_METRICS_ADDR",
        "--metrics-addr",
        "127.0.0.1",
        str,
        "Address on which the metrics are served: by default only this machine can read them; 0.0.0.0 serves everyone who can "
        "reach the port.",
        "ADDRESS",
    ),
    Setting(
        "SLIPWAY_NOTIFY",
        "",
        "",
        _web_address,
        "URL to which messages are posted as JSON: at the end, a restart, a hang, a lost node. The URL is a secret.",
        "URL",
    ),
    Setting(
        "SLIPWAY_COMPANIONS",
        "",
        "",
        str,
        "Programs of yours that accompany the job on each node, separated by commas (docs/monitoring.md).",
        "MODULE:FUNCTION",
    ),
    Setting(
        "SLIPWAY_ALLOW_UNEVEN",
        "--allow-uneven",
        "0",
        _switch,
        "If nodes have different numbers of processes, use the smallest number on all nodes.",
        flag=True,
    ),
    Setting(
        "SLIPWAY_CHECK",
        "--check",
        "0",
        _switch,
        "First check this node's health, in a few seconds, and do not start on an unhealthy node (see `slipway check`).",
        flag=True,
    ),
    Setting("SLIPWAY_OVERSUBSCRIBE", "--oversubscribe", "0", _switch, "Allow more processes than GPUs.", flag=True),
    Setting(
        "SLIPWAY_CPU_BINDING",
        "--cpu-binding",
        "auto",
        _choice("auto", "none"),
        "auto: each process has cores and memory of its GPU's NUMA node, if every GPU has a process; none: the system decides.",
        "auto|none",
    ),
    Setting(
        "SLIPWAY_DEBUG",
        "--debug",
        "0",
        _switch,
        "Enable the debug output of torch.distributed and NCCL: sets TORCH_LOGS, TORCH_DISTRIBUTED_DEBUG and NCCL_DEBUG, unless"
        " you set them.",
        flag=True,
    ),
)
BY_NAME = MappingProxyType({setting.name: setting for setting in SETTINGS})

NAMES = frozenset(name for setting in SETTINGS for name in (setting.name, *setting.aliases))
