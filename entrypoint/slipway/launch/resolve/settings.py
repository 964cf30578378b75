"""Every setting once: its variable, option, default, parser and help; and where its values come from.

Command line > environment > `.env` > default. Nothing here changes the process's environment.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from slipway.launch.resolve.foreign_values import ExplainedError, explain_value, parse_address
from slipway.protocol.errors import LaunchError
from slipway.protocol.mistake import did_you_mean
from slipway.protocol.redact import redact

if TYPE_CHECKING:
    from dotenv.parser import Binding


class Claim(NamedTuple):
    """A value somebody gave, as text, and who did: `source` reads like `environment (RANK)`."""

    value: str
    source: str

    def about(self, name: str) -> str:
        """How a message shows it: `RANK=3 (from the environment)`, and what was typed as it was typed: `--node-rank 3`."""
        if typed := re.fullmatch(r"command line \((--[\w-]+)\)", self.source):
            return f"{typed[1]} {self.value}"
        source = self.source.removesuffix(f" ({name})")
        return f"{name}={self.value} (from {'the ' if source == 'environment' else ''}{source})"


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


def _nodes(text: str) -> tuple[int, int]:
    """The smallest and the largest number of nodes: torchrun's MIN:MAX, or one number for both."""
    low, colon, high = text.partition(":")
    least, most = (_number(1, 65_536)(part) for part in (low, high if colon else low))
    if least > most:
        raise ValueError("MIN:MAX is needed, the smaller number of nodes first")
    return least, most


def _processes(text: str) -> int | str:
    if text in ("auto", "gpu", "cpu"):
        return text
    try:
        return _number(1, 1024)(text)
    except ValueError:
        raise ValueError("a number from 1 to 1024, auto, gpu or cpu are allowed") from None


def _number_or_auto(low: int, high: int) -> Callable[[str], int | str]:
    def parse(text: str) -> int | str:
        if text == "auto":
            return text
        try:
            return _number(low, high)(text)
        except ValueError:
            raise ValueError(f"a number from {low} to {high} or auto are allowed") from None

    return parse


def _hang(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return _number(0, 86_400)(text)
    except ValueError:
        raise ValueError("a number of seconds from 0 to 86400 or auto are allowed") from None


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
        "Number of nodes (not of processes), or MIN:MAX for a job that may shrink and grow.",
        "N|MIN:MAX",
        aliases=("NNODES",),
    ),
    Setting(
        "RANK", "--node-rank", "0", _number(0, 65_535), "This node's rank, 0 to nodes-1.", "N", aliases=("NODE_RANK",)
    ),
    Setting("MASTER_ADDR", "--master-addr", "127.0.0.1", parse_address, "Name or address of node 0.", "HOST"),
    Setting(
        "MASTER_PORT",
        "--master-port",
        "29500",
        _number(0, 65_534),
        "Port on node 0 where the nodes meet; torchrun's store takes the next. A single node takes a free one.",
        "PORT",
    ),
    Setting(
        "NPROC_PER_NODE",
        "--nproc-per-node",
        "auto",
        _processes,
        "Processes on this node: a number, auto (one per GPU; without GPUs two on the CPU), gpu, cpu (one per core).",
        "N|auto|gpu|cpu",
    ),
    Setting(
        "WORKLOAD",
        "",
        "gpt --preset tiny",
        _words,
        "What `slipway run` trains when no name is given.",
    ),
    Setting(
        "SLIPWAY_BACKEND",
        "--backend",
        "auto",
        _choice("auto", "nccl", "gloo", "mpi"),
        "Communication: auto is nccl with GPUs and gloo without.",
        "auto|nccl|gloo|mpi",
    ),
    Setting("SLIPWAY_RUNS", "--runs", "runs", str, "Folder that holds the runs; in the image /checkpoints.", "DIR"),
    Setting("SLIPWAY_RUN_DIR", "--run-dir", "", str, "This run's folder, instead of a new one in the runs.", "DIR"),
    Setting(
        "SLIPWAY_RESUME",
        "--resume",
        "none",
        str,
        "none starts a new run; auto goes on from the newest snapshot of this run (or of the workload's newest one); "
        "a PATH starts from that run or snapshot.",
        "auto|none|PATH",
    ),
    Setting(
        "SLIPWAY_GRACE_SECONDS",
        "--grace-seconds",
        "110",
        _number(1, 86_400),
        "Seconds that a stopped job has for its snapshot before it is killed.",
        "S",
    ),
    Setting(
        "SLIPWAY_AFTER_FAILURE_SECONDS",
        "--after-failure-seconds",
        "auto",
        _number_or_auto(1, 86_400),
        "Seconds that the other ranks have to end once one failed: auto is 30 for your own script, and at most 5 where Slipway "
        "saves.",
        "S|auto",
    ),
    Setting(
        "SLIPWAY_MAX_RESTARTS",
        "--max-restarts",
        "auto",
        _number_or_auto(0, 1000),
        "How often in a row, without progress, a job that failed is started again: auto is 3 for Slipway's workloads and 0 for "
        "your own script.",
        "N|auto",
    ),
    Setting(
        "SLIPWAY_PROGRESS_SECONDS",
        "--progress-seconds",
        "600",
        _number(1, 999_999),
        "Seconds that your own script has to run for its restarts to be counted anew.",
        "S",
    ),
    Setting(
        "SLIPWAY_WARM",
        "",
        "1",
        _switch,
        "Keep a process with torch imported, from which a job that failed is started again in a second or two; 0 starts it anew.",
        "1|0",
    ),
    Setting(
        "SLIPWAY_HANG_SECONDS",
        "--hang-seconds",
        "auto",
        _hang,
        "Seconds that a job may stand still before that counts as a hang; saving and evaluation may take a multiple, and "
        "starting has a limit of its own; 0 for any time. auto is 300 for Slipway's workloads and 600 for your own script.",
        "S|auto",
    ),
    Setting(
        "SLIPWAY_START_SECONDS",
        "--start-seconds",
        "auto",
        _hang,
        "The same for a workload of Slipway's that starts: times 3 for imports and first connections, 4 for a snapshot, 6 for "
        "the first step, 12 for preparing data; 0 for any time. auto is 300, or --hang-seconds where that is longer.",
        "S|auto",
    ),
    Setting(
        "SLIPWAY_ON_HANG",
        "--on-hang",
        "tell",
        _choice("tell", "end"),
        "What becomes of your own script when it hangs: tell names the rank and the line, end also ends it (exit code 76).",
        "tell|end",
    ),
    Setting(
        "SLIPWAY_WATCH",
        "",
        "1",
        _switch,
        "Ask each worker where it stands, for hangs and `slipway stacks`; 0 leaves the workers alone.",
        "1|0",
    ),
    Setting(
        "SLIPWAY_MUSTER_TIMEOUT",
        "--muster-timeout",
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
        "Seconds without a sign of life after which a node counts as lost; what node 0 says counts for all.",
        "S",
    ),
    Setting(
        "SLIPWAY_ELASTIC_WINDOW",
        "--elastic-window",
        "30",
        _number(0, 86_400),
        "With WORLD_SIZE=MIN:MAX: seconds that more nodes are waited for once the smallest number is there.",
        "S",
    ),
    Setting(
        "SLIPWAY_TOKEN",
        "",
        "",
        str,
        "A secret that all nodes of a job share; launchers without it are turned away.",
    ),
    Setting(
        "SLIPWAY_METRICS_PORT",
        "--metrics-port",
        "0",
        _number(0, 65_535),
        "Answer Prometheus and its like (OpenMetrics) on this port, on each node of its own ranks; 0 answers nobody.",
        "PORT",
    ),
    Setting(
        "SLIPWAY_METRICS_ADDR",
        "--metrics-addr",
        "127.0.0.1",
        str,
        "The address on which it is answered: this machine only, or 0.0.0.0 for everybody who can reach it.",
        "ADDRESS",
    ),
    Setting(
        "SLIPWAY_NOTIFY",
        "",
        "",
        _web_address,
        "Where messages are posted as JSON: at the end, a restart, a hang, a lost node. The address is a secret.",
        "URL",
    ),
    Setting(
        "SLIPWAY_ALLOW_UNEVEN",
        "--allow-uneven",
        "0",
        _switch,
        "Nodes with different numbers of processes all run the smallest.",
        flag=True,
    ),
    Setting(
        "SLIPWAY_CHECK",
        "--check",
        "0",
        _switch,
        "Look at this node's health first, in a few seconds, and start nothing on an unhealthy one (see `slipway check`).",
        flag=True,
    ),
    Setting(
        "SLIPWAY_OVERSUBSCRIBE",
        "--oversubscribe",
        "0",
        _switch,
        "Allow more processes than GPUs.",
        flag=True,
    ),
    Setting(
        "SLIPWAY_CPU_BINDING",
        "--cpu-binding",
        "auto",
        _choice("auto", "none"),
        "auto: each process runs on the cores of its GPU's NUMA node, where no GPU is left over; none: where the system puts it.",
        "auto|none",
    ),
    Setting(
        "SLIPWAY_DEBUG",
        "--debug",
        "0",
        _switch,
        "Let torch.distributed and NCCL say what they do, by TORCH_LOGS, TORCH_DISTRIBUTED_DEBUG and NCCL_DEBUG, "
        "unless you set them.",
        flag=True,
    ),
)
BY_NAME = MappingProxyType({setting.name: setting for setting in SETTINGS})


# What is read of a `.env` file beside the settings: variables of torch and its libraries, handed to the workers, and what
# `slipway render` takes from Compose's own lines.
LIBRARIES = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_")
_COMPOSE = ("IMAGE", "COMPOSE_FILE")
NAMES = frozenset(name for setting in SETTINGS for name in (setting.name, *setting.aliases))


def read_env_file(path: Path) -> dict[str, str]:
    """What a `.env` file says to us. Raises LaunchError."""
    return split_env_file(path)[0]


def split_env_file(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read a `.env` file without touching the environment: what it says to us, and to others; empty values are left out.

    Of its lines those count that name a setting, a variable of LIBRARIES, IMAGE or COMPOSE_FILE, and those must be such as
    docker's `--env-file`, compose and python-dotenv read alike: no quotes, `$`, backslashes, `export` or trailing comments.
    All others are somebody else's. Raises LaunchError naming file, line and what to write instead; also for a name in
    SLIPWAY_… that is no setting.
    """
    values: dict[str, str] = {}
    others: dict[str, str] = {}
    for binding in _parse(path):
        blank = re.match(r"(?:[^\S\n]*\n)*", binding.original.string)
        line = binding.original.string[blank.end() if blank else 0 :].rstrip("\r\n")
        name = re.match(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)(?=[=:\s]|$)", line)
        if not name or not _is_ours(name[1]):
            others |= {name[1]: binding.value} if name and binding.value else {}
            continue
        where = f"{path}, line {binding.original.line + (blank[0].count(chr(10)) if blank else 0)}"
        if not re.fullmatch(_PORTABLE, line):
            raise LaunchError(  # never the value: it may be a secret
                f"{where} ({name[1]}): write NAME=value without quotes, $, backslashes, export, spaces around the value or a "
                "comment behind it; docker, compose and Slipway then read the same."
            )
        if name[1].startswith("SLIPWAY_") and name[1] not in NAMES:
            raise LaunchError(f"{where}: there is no setting {name[1]}.{did_you_mean(name[1], NAMES)}")
        values[name[1]] = line.partition("=")[2]
    return {name: value for name, value in values.items() if value}, others


def read_all_values(path: Path) -> dict[str, str]:
    """Every value in a `.env` file, whoever's it is: what must not be shown. Raises LaunchError where it cannot be read."""
    return {binding.key: binding.value for binding in _parse(path) if binding.key and binding.value}


def _parse(path: Path) -> "list[Binding]":
    from dotenv.parser import parse_stream  # 15 ms that a start without a file need not pay

    try:
        text = path.read_text(
            encoding="utf-8-sig"
        )  # some editors begin a file with a mark, which docker and compose skip
        return list(parse_stream(StringIO(text)))
    except (OSError, UnicodeDecodeError) as error:
        wide = " PowerShell's > writes such a file; save it as UTF-8." if "0xff" in str(error) else ""
        raise LaunchError(f"{path} cannot be read: {error}.{wide}") from None


def _is_ours(name: str) -> bool:
    return name in NAMES or name in _COMPOSE or name.startswith(("SLIPWAY_", *LIBRARIES))


_PORTABLE = r"""[A-Za-z_][A-Za-z0-9_]*=(?:[^\s'"$\\`#]|[^\s'"$\\`#](?:(?!\s\#)[^'"$\\`])*[^\s'"$\\`])?"""


@dataclass(frozen=True)
class Sources:
    """The three places that values come from, the strongest first; empty variables count as unset."""

    options: Mapping[str, str]  # keyed by setting name
    environ: Mapping[str, str]
    env_file: Mapping[str, str]
    env_file_name: str = ".env"
    defaults: Mapping[str, str] = field(default_factory=dict)  # keyed by setting name, where this place has others
    origins: Mapping[str, str] = field(default_factory=dict)  # of `options`, where it was not the setting's own option
    slips: tuple[str, ...] = ()  # what is said of names that seem to be mistyped

    def option(self, setting: Setting) -> Claim | None:
        """What the command line says."""
        value = self.options.get(setting.name)
        source = self.origins.get(setting.name, f"command line ({setting.option})")
        return None if value is None else Claim(value, source)

    def from_environment(self, *names: str) -> list[Claim]:
        """What the environment says about these variables."""
        return [Claim(value, f"environment ({name})") for name in names if (value := self.environ.get(name))]

    def from_file(self, *names: str) -> list[Claim]:
        """What the `.env` file says about these variables."""
        return [Claim(value, f"{self.env_file_name} ({name})") for name in names if (value := self.env_file.get(name))]

    def variable(self, *names: str) -> Claim | None:
        """What the environment says about a variable (the first that is set), else what the `.env` file says."""
        return next(iter((*self.from_environment(*names), *self.from_file(*names))), None)

    def claims(self, setting: Setting) -> list[Claim]:
        """All values given for a setting that no scheduler has a say in, the winner first, the default last."""
        names = (*setting.aliases, setting.name)
        option = self.option(setting)
        given = [*([option] if option else []), *self.from_environment(*names), *self.from_file(*names)]
        return [*given, Claim(self.defaults.get(setting.name, setting.default), "default")]

    def parsed(self, name: str) -> object:
        """The winning value of such a setting, as its parser reads it. Raises LaunchError."""
        return parse_claim(BY_NAME[name], self.claims(BY_NAME[name])[0])

    def value(self, name: str) -> str:
        """The winning text of such a setting, checked by its parser. Raises LaunchError."""
        self.parsed(name)
        return self.claims(BY_NAME[name])[0].value


def parse_claim(setting: Setting, claim: Claim) -> object:
    """Turn a claim's text into the setting's value. Raises LaunchError saying what was read, from where, what is allowed."""
    try:
        return setting.parse(claim.value)
    except ValueError as error:
        shown = claim._replace(value=redact(setting.name, claim.value)).about(setting.name)
        if why := explain_value(setting.name, claim.value):
            raise LaunchError(f"{shown}: {why}.") from None
        if isinstance(error, ExplainedError):
            raise LaunchError(f"{shown}: {error}.") from None
        type_this = f"Type for example {setting.option} {setting.default}" if setting.default and setting.option else ""
        text = f"{shown}: {error}.{did_you_mean(claim.value.lower(), setting.words)} {type_this}"
        raise LaunchError(text.rstrip()) from None
