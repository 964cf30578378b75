"""Where the values of settings come from: command line > environment > `.env` > default; how a `.env` file is read; and which
names look like a mistyped setting. Nothing here changes the process's environment.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from slipway.launch.resolve.foreign_values import ForeignValueError, explain_value
from slipway.launch.resolve.portable_values import PORTABLE, explain_given, explain_line
from slipway.launch.resolve.rdzv import Rdzv, read_rdzv
from slipway.launch.resolve.settings import BY_NAME, NAMES, SETTINGS, TOPOLOGICAL, Setting
from slipway.protocol.errors import LaunchError, told_if_unreadable
from slipway.protocol.mistake import did_you_mean, nearest
from slipway.protocol.printable import listed
from slipway.protocol.redact import redact

if TYPE_CHECKING:
    from dotenv.parser import Binding


DEFAULT = "default"  # as the source of a value that nobody gave


class Claim(NamedTuple):
    """A value that was given, as text, and where it came from: `source` reads like `environment (RANK)`."""

    value: str
    source: str

    @property
    def is_default(self) -> bool:
        """Whether nobody gave it."""
        return self.source == DEFAULT

    @property
    def is_typed(self) -> bool:
        """Whether it is from the command line."""
        return self.source.startswith("command line")

    def is_called(self, name: str) -> bool:
        """Whether it was given under this name of a variable, where the setting has several."""
        return self.source.endswith(f" ({name})")

    def about(self, name: str) -> str:
        """How a message shows it: `RANK=3 (from the environment)`, and what was typed as it was typed: `--node-rank 3`."""
        if typed := re.fullmatch(r"command line \((--[\w-]+)\)", self.source):
            return f"{typed[1]} {self.value}"
        source = self.source.removesuffix(f" ({name})")
        return f"{name}={self.value} (from {'the ' if source == 'environment' else ''}{source})"


class Sources(NamedTuple):
    """The three places that values come from, the strongest first; empty variables count as unset."""

    options: Mapping[str, str]  # keyed by setting name
    environ: Mapping[str, str]
    env_file: Mapping[str, str]
    env_file_name: str = ".env"
    defaults: Mapping[str, str] = MappingProxyType({})  # keyed by setting name, where this place has others
    origins: Mapping[str, str] = MappingProxyType({})  # of `options`, where it was not the setting's own option
    slips: tuple[str, ...] = ()  # a sentence for each name that seems to be mistyped
    ignored: tuple[str, ...] = ()  # sentences about lines of the `.env` file that do not count
    rdzv: Rdzv = Rdzv()  # of torchrun's options what is no setting; what is one is among `options`

    @property
    def file_lines(self) -> tuple[str, ...]:
        """A line about what was read of the `.env` file, which somebody may have forgotten; none if nothing was."""
        counts = (name for name in self.env_file.keys() - {*COMPOSE} if self._counts(name))
        read = listed(sorted(counts), 10)
        return (f"settings from {self.env_file_name}: {read}",) if read else ()

    def _counts(self, name: str) -> bool:
        """Whether nothing stands before what the `.env` file says of a name."""
        setting = BY_NAME.get(name)
        return not self.environ.get(name) and not (setting and self.option(setting))

    def option(self, setting: Setting) -> Claim | None:
        """The value on the command line."""
        value = self.options.get(setting.name)
        source = self.origins.get(setting.name, f"command line ({setting.option})")
        return None if value is None else Claim(value, source)

    def from_environment(self, *names: str) -> list[Claim]:
        """The values of these variables in the environment."""
        return [Claim(value, f"environment ({name})") for name in names if (value := self.environ.get(name))]

    def from_file(self, *names: str) -> list[Claim]:
        """The values of these variables in the `.env` file."""
        return [Claim(value, f"{self.env_file_name} ({name})") for name in names if (value := self.env_file.get(name))]

    def variable(self, *names: str) -> Claim | None:
        """The value of a variable (the first that is set) in the environment, else in the `.env` file."""
        return next(iter((*self.from_environment(*names), *self.from_file(*names))), None)

    def claims(self, setting: Setting) -> list[Claim]:
        """All values given for a setting that no scheduler has a say in, the winner first, the default last."""
        names = (*setting.aliases, setting.name)
        option = self.option(setting)
        given = [*([option] if option else []), *self.from_environment(*names), *self.from_file(*names)]
        return [*given, Claim(self.defaults.get(setting.name, setting.default), "default")]

    def claim(self, name: str) -> Claim:
        """The one of `claims` that wins."""
        return self.claims(BY_NAME[name])[0]

    def parsed(self, name: str) -> object:
        """The winning value of such a setting, as its parser reads it. Raises LaunchError."""
        return parse_claim(BY_NAME[name], self.claim(name))

    def value(self, name: str) -> str:
        """The winning text of such a setting, checked by its parser. Raises LaunchError."""
        self.parsed(name)
        return self.claim(name).value


def parse_claim(setting: Setting, claim: Claim) -> object:
    """Turn a claim's text into the setting's value. Raises LaunchError saying what was read, from where, what is allowed."""
    try:
        return setting.parse(claim.value)
    except ValueError as error:
        shown = claim._replace(value=redact(setting.name, claim.value)).about(setting.name)
        given = explain_given(setting.name, claim.value) if claim.source.startswith("environment") else ""
        if why := given or explain_value(setting.name, claim.value):
            raise LaunchError(f"{shown}: {why}.") from None
        if isinstance(error, ForeignValueError):
            raise LaunchError(f"{shown}: {error}.") from None
        type_this = f"Type for example {setting.option} {setting.default}" if setting.default and setting.option else ""
        if setting.default and (variable := re.fullmatch(r"environment \((\w+)\)", claim.source)):
            type_this = f"Set for example {variable[1]}={setting.default}"
        text = f"{shown}: {error}.{did_you_mean(claim.value.lower(), setting.words)} {type_this}"
        raise LaunchError(text.rstrip()) from None


def read_sources(options: dict[str, Any], defaults: dict[str, str], only: Collection[str] = ()) -> Sources:
    """The settings that were given; `defaults` are this place's own. `only`: read nothing but these, so that a mistake in
    another setting does not matter. Raises LaunchError for a value that cannot be."""
    names = {setting.name for setting in SETTINGS}
    given = {name: str(value) for name, value in options.items() if name in names and value is not None}
    if empty := next((BY_NAME[name] for name, value in given.items() if not value), None):
        raise LaunchError(
            f"{empty.option}: the value is empty. A shell variable that is not set leaves nothing. Give a value "
            f"({empty.metavar}), or leave the option out (default: {defaults.get(empty.name) or empty.default or 'none'})."
        )
    rdzv = read_rdzv(options, os.environ)
    origins = {name: origin for name, origin in rdzv.origins.items() if name not in given}
    given = {**rdzv.settings, **given}
    if options.get("standalone"):
        given |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    path = Path(options.get("env_file") or ".env")
    with told_if_unreadable("Name another file with --env-file."):
        there, is_file = path.exists(), path.is_file()
    if options.get("env_file") and not there:  # /dev/null and pipes are files, too
        raise LaunchError(
            f"--env-file {path}: there is no such file, seen from {Path.cwd()}. Type the path of one, or leave it out for ./.env."
        )
    environ = dict(os.environ)
    named = bool(options.get("env_file"))
    env_file, others = split_env_file(path, only, named=named) if named or is_file else ({}, {})
    known = {name for name in NAMES if name in given or environ.get(name) or name in env_file}
    folder = there and not is_file and path.is_dir() and not (path / "pyvenv.cfg").exists()
    no_file = (f"{path} is a folder, so no settings are read from it.",) if folder else ()
    slips = (*no_file, *misspelt(environ, "the environment", known), *misspelt(others, path.name, known))
    ignored = tuple(_ignored_lines(path, others, known, named=named)) if env_file or others else ()
    sources = Sources(given, environ, env_file, path.name, defaults, origins, slips, ignored, rdzv)
    settings = [setting for setting in SETTINGS if not only or setting.name in only]
    claims = {setting.name: sources.claim(setting.name) for setting in settings}
    if not only:
        claims |= {
            name: Claim(environ[name], f"environment ({name})") for name in environ if name.startswith(LIBRARIES)
        }
    if kept := list(_kept_by_docker(claims)):
        raise LaunchError(" ".join(kept))
    for setting in settings:
        if setting.name not in TOPOLOGICAL:  # those are checked once the schedulers had their say
            sources.parsed(setting.name)
    return sources


def _kept_by_docker(claims: Mapping[str, Claim]) -> Iterator[str]:
    """A sentence about each value that has quotes, a comment or a $ as a part of it, since docker's --env-file keeps them."""
    for name, claim in claims.items():
        if claim.source.startswith("environment") and (why := explain_given(name, claim.value)):
            yield f"{claim._replace(value=redact(name, claim.value)).about(name)}: {why}."


# What is read of a `.env` file beside the settings: variables of torch and its libraries, passed to the workers, and what
# `slipway render` takes from Compose's own lines.
LIBRARIES = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_")

COMPOSE = ("IMAGE", "COMPOSE_FILE")
_COMPOSE_ALONE = (
    "COMPOSE_",
    "TENSORBOARD_",
)  # what other names begin with that docker compose reads for compose/compose.yaml


def split_env_file(
    path: Path, only: Collection[str] = (), *, named: bool = True
) -> tuple[dict[str, str], dict[str, str]]:
    """Read a `.env` file without touching the environment: the values for Slipway, and those for others; empty values are left
    out.

    Of its lines those count that name a setting, a variable of LIBRARIES, IMAGE or COMPOSE_FILE, and those must be such as
    docker's `--env-file`, compose and python-dotenv read alike: no quotes, `$`, backslashes, `export` or trailing comments.
    All others are ignored, and with `only` all but these. Raises LaunchError naming file, line and what to write instead; also
    for a name in SLIPWAY_… that is no setting, and unless somebody `named` the file, for one that may be another user's.
    """
    values: dict[str, str] = {}
    others: dict[str, str] = {}
    unknown: list[str] = []
    for binding in _parse(path, named=named):
        text = binding.original.string.rstrip("\r\n")
        line = re.sub(r"\A(?:[^\S\n]*\n)+", "", text)  # the parser adds empty lines to the one after them
        found = re.match(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)(?=[=:\s]|$)", line)
        name = found[1] if found else ""
        if not (name in only if only else _is_ours(name)):
            others |= {name: binding.value} if name and binding.value else {}
            continue
        where = f"{path}, line {binding.original.line + text.removesuffix(line).count(chr(10))}"
        if not PORTABLE.fullmatch(line):
            raise LaunchError(f"{where} ({name}): {explain_line(line)}.")
        if name.startswith("SLIPWAY_") and name not in NAMES:
            unknown.append(f"{where}: there is no setting {name}.{did_you_mean(name, NAMES)}")
        values[name] = line.partition("=")[2]
    if unknown:
        raise LaunchError(" ".join((*unknown, *misspelt(others, path.name, values))))
    return {name: value for name, value in values.items() if value}, others


def _ignored_lines(path: Path, others: Mapping[str, str], known: Collection[str], *, named: bool) -> Iterator[str]:
    """A sentence about the lines of a `.env` file that name no setting, and for each setting that stands there twice. Names that
    seem to be mistyped have a sentence of their own (`misspelt`).
    """
    foreign = {name: value for name, value in others.items() if not name.startswith(_COMPOSE_ALONE)}
    if foreign := {
        name: value for name, value in foreign.items() if not any(misspelt({name: value}, path.name, known))
    }:
        yield (
            f"{path.name}: ignored, because they are no settings of Slipway: {', '.join(foreign)}. Export them, or give them to "
            "the container with docker run --env-file"
        )
    names = Counter(binding.key for binding in _parse(path, named=named) if binding.key and _is_ours(binding.key))
    for name, count in names.items():
        if count > 1:
            yield f"{path.name}: {name} stands there {count} times, and the last line counts"


def read_all_values(path: Path) -> dict[str, str]:
    """Every value in a `.env` file, of any program: what must not be shown. Raises LaunchError where it cannot be read."""
    return {binding.key: binding.value for binding in _parse(path) if binding.key and binding.value}


def _parse(path: Path, *, named: bool = True) -> "list[Binding]":
    from dotenv.parser import parse_stream  # 15 ms that a start without a file need not pay

    try:
        # Some editors begin a file with a mark, which docker and compose skip.
        with path.open(encoding="utf-8-sig") as file:
            if not named:
                _require_own(path, os.fstat(file.fileno()))
            return list(parse_stream(StringIO(file.read())))
    except UnicodeDecodeError as error:
        wide = " PowerShell's > writes such a file." if 0xFF in error.object[:2] else ""
        line = error.object[: error.start].count(b"\n") + 1
        raise LaunchError(f"{path} cannot be read: line {line} is not UTF-8.{wide} Save it as UTF-8.") from None
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error}.") from None


def _require_own(path: Path, found: os.stat_result) -> None:
    """Raise LaunchError (78) for a file of the working directory that another user may have put there, or may write.

    The owner of a folder that not everybody may write is trusted with it: a container's root reads what the host's user mounts.
    """
    folder = path.absolute().parent.stat()
    trusted = {0, os.geteuid(), *([] if folder.st_mode & stat.S_IWOTH else [folder.st_uid])}
    foreign = next((uid for uid in (path.lstat().st_uid, found.st_uid) if uid not in trusted), None)
    if foreign is None and not found.st_mode & stat.S_IWOTH:
        return
    why = f"every user may write it (chmod o-w {path})" if foreign is None else f"it belongs to user {foreign}"
    raise LaunchError(
        f"{path.absolute()} is not read: {why}, and it could name code for your job to load. If you trust it, type --env-file "
        f"{path}. Otherwise remove it, or start in another folder."
    )


def _is_ours(name: str) -> bool:
    return name in NAMES or name in COMPOSE or name.startswith(("SLIPWAY_", *LIBRARIES))


PREFIX = "SLIPWAY_"
# Beside the settings: what the launcher passes to its workers, and the image to the launcher (docs/internals.md); and the tests'.
WITHIN = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "ATTEMPT", "DEVICE", "EVENTS", "IMAGE", "LOCAL_CORES", "LOCAL_DEVICES", "MEMORY", "NODE_DIR", "PIPES",
        "PREVIOUS_OUTCOME", "PROGRESS", "PROOF", "SHARED_RUN_DIR", "WATCHER",
    )
)  # fmt: skip
TESTS = f"{PREFIX}TEST_"
# What Kubernetes sets in every pod for a Service called slipway-…
SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
# Further from the right name than a slip of the finger, and not used by others.
LONGER = {"MASTER_ADDRESS": "MASTER_ADDR", "NNODE": "NNODES"}
# In names of at least so many letters one letter may be wrong, or two; in shorter ones only two that changed places.
ONE, TWO = 8, 12


def misspelt(given: Mapping[str, str], where: str, known: Collection[str] = ()) -> Iterator[str]:
    """A sentence for each of the variables `given` in `where` that seems to be a mistyped setting. Pure.

    Another program's variable must not be taken for one: a name with our prefix is ours, any other has to be within a letter or
    two of a setting. One whose right name is `known` to have a value was not meant to be that.
    """
    for name, value in given.items():
        if not value or name in NAMES or name in WITHIN or name.startswith(TESTS) or _is_service(name, value):
            continue
        near = meant(name)
        if near and near not in known:
            yield f"{name} (from {where}) is not a setting of Slipway. Did you mean {near}?"
        elif not near and name.startswith(PREFIX):
            yield f"{name} (from {where}) is not a setting of Slipway; `slipway run --help` lists them."


def _is_service(name: str, value: str) -> bool:
    return SERVICE.search(name) is not None or re.match(r"(tcp|udp|sctp)://", value) is not None


def meant(name: str) -> str:
    """The setting that a name which is none was probably meant to be; empty where none comes near."""
    if name in LONGER:
        return LONGER[name]
    if name != name.upper() and name.upper() in NAMES:
        return name.upper()
    if name.startswith(PREFIX):
        return _meant_behind_prefix(name.removeprefix(PREFIX))
    # The first letter is hardly ever mistyped, and every variable is compared at every start.
    return next((known for known in _beginning_with(name[:1]) if _is_slip(name, known)), "")


def _meant_behind_prefix(rest: str) -> str:
    bare = {known.removeprefix(PREFIX): known for known in sorted(NAMES)}
    if rest in bare:
        return bare[rest]
    words = rest.split("_")
    within = [known for known in bare if set(words) <= set(known.split("_"))]  # SLIPWAY_GRACE
    begun = [known for known in bare if known.split("_")[0] == words[0]]  # SLIPWAY_CPU
    only = next((names[0] for names in (within, begun) if len(names) == 1), "")
    return bare.get(only or nearest(rest, bare), "")


@cache
def _beginning_with(letter: str) -> tuple[str, ...]:
    return tuple(sorted(known for known in NAMES if known.startswith(letter)))


def _is_slip(name: str, known: str) -> bool:
    typed, right = name.replace("_", ""), known.replace("_", "")
    if typed == f"{known}S":  # WORKLOADS: a word of its own
        return False
    if len(right) < ONE:
        return sorted(typed) == sorted(right) and _distance(typed, right) == 1
    allowed = 2 if len(right) >= TWO else 1
    if abs(len(typed) - len(right)) > allowed:  # so it is with most names, and the length is known at once
        return False
    # A letter that the other lacks is a difference of its own, and is found sooner than the distance.
    if max((Counter(typed) - Counter(right)).total(), (Counter(right) - Counter(typed)).total()) > allowed:
        return False
    return _distance(typed, right) <= allowed


def _distance(one: str, other: str) -> int:
    """How many letters were left out, added, changed, or changed places (optimal string alignment)."""

    @cache
    def between(i: int, j: int) -> int:
        if min(i, j) == 0:
            return max(i, j)
        ways = [between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (one[i - 1] != other[j - 1])]
        if min(i, j) > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
            ways.append(between(i - 2, j - 2) + 1)
        return min(ways)

    return between(len(one), len(other))
