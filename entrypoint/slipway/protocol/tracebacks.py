"""What a Python traceback says: which exception ended the program, its whole message, and where. Text in, dataclass out.

It reads what Python 3.11 and newer print, with colours, marks and torch's `[rank0]: ` in front; groups of exceptions, tracebacks
of data loaders and of spawned processes, Hydra's shortened ones, and those that rich draws into boxes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipway.protocol.causes import in_one_line

LONGEST_MESSAGE = 50  # lines
PACKAGE = str(Path(__file__).parents[1]) + "/"

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x1b\x07]*(?:\x1b\\|\x07)")
_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch's, in front of each line of a traceback
_MARGIN = re.compile(r"^ {2,}[|+] ?")  # of a group of exceptions
_END = re.compile(r" +\+-+$")  # of a group
_PART = re.compile(r" +\+[-+]+ \d+ -+$|(?:\w+ )?Original Traceback|-- Process \d+ terminated with the following error")
_HEADER = re.compile(r"(?:^|\s)Traceback \(most recent call last\)")
_CHAIN = re.compile(r"The above exception was the direct cause of|During handling of the above exception")
# What did not end the program, or not by itself: told only where there is nothing else.
_ASIDE = re.compile(r"Exception ignored in|Exception in thread|Error in atexit|Process \S+:$|--- Logging error")
_FRAME = re.compile(r'[ >] File "(.+)", line (\d+)(?:, in (.+))?$')
_BOX = re.compile(r"[│|] (.*?)\s*[│|]$")  # a line of rich's
_BOX_FRAME = re.compile(r"([/<~.].*?):(\d+)(?: in ?(.+))?$")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>()]*(?:: .*|:)?$")
# Without a traceback only what is called like one is an exception; or what C++ says of one that nobody caught.
_BARE = re.compile(r"(?!nccl)[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Timeout)(?::.*)?$")
_UNCAUGHT = re.compile(r"\s+what\(\):\s+(.*)$")
_GROUP = re.compile(r"\(\d+ sub-exceptions?\)$")
_HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1"
_HYDRA_FIRST = "Error executing job with overrides"
# What others print behind a message: torch's log, C++ stacks, NCCL, warnings.
_NOISE = re.compile(
    rf"\[[WEIF][\d\]]|Exception raised from |frame #\d+:|terminate called|\S*:\d+:\d+ .*NCCL |\S+:\d+: \w*Warning: |{_HYDRA}"
)
# What may follow the exception that ended a program: more of its message, indented; what others print at an end; asides.
_FOLLOWS = re.compile(
    rf"\s|$|\[rank\d+\]:|{_NOISE.pattern}|{_ASIDE.pattern}|{_HEADER.pattern}|{_CHAIN.pattern}|{_PART.pattern}|[│╰╯╭|+]"
    r"|wandb: |COMET [A-Z]+: |\[neptune\] |swanlab: |ClearML "
    r"|Fatal Python error|(Current )?[Tt]hread 0x|Extension modules: |\w+: \w*Warning: |Aborted|Segmentation fault"
    r"|[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Timeout)\b"
    r"|Last error:|CUDA kernel errors might|For debugging consider|Compile with `TORCH|Search for `cuda|Device-side assert"
)
_ECHO = re.compile(r"EOFError|BrokenPipeError|Connection(Reset|Refused)Error")
_LOGGED = re.compile(r"\b(?:WARN(?:ING)?|ERROR|CRITICAL|FATAL|EXCEPTION)\b")
_LIBRARY = re.compile(r"/(?:(?:site|dist)-packages|lib(?:64)?/python3[^/]*)(?=/)")


@dataclass(frozen=True)
class Raised:
    """The exception that ended a program: type and message as printed, and where, if told.

    `first` is the exception that led to it, `within` the one that carried it, such as a group.
    """

    said: str
    where: str | None = None
    first: str = ""
    within: str = ""

    @property
    def evidence(self) -> str:
        """All of it in one line."""
        more = (("first came", self.first), ("within", self.within))
        return in_one_line(self.said) + "".join(f"; {word} {in_one_line(text)}" for word, text in more if text)


@dataclass(frozen=True)
class _Frame:
    file: str
    line: str
    function: str | None

    @property
    def users(self) -> bool:
        return not self.file.startswith(("<", PACKAGE)) and not _LIBRARY.search(self.file)

    def __str__(self) -> str:
        *_, file = _LIBRARY.split(self.file)
        name = Path(self.file).name if file == self.file else file.removeprefix("/")
        return f"{name}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass
class _Entry:
    """One exception of a chain; `link` says what it is to those before it: `` (nothing), `chain` or `part`."""

    link: str
    aside: bool
    frames: list[_Frame] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    prefixed: bool = False
    box: str = ""  # a paragraph of rich's, which wraps long paths
    begins: int = 0  # the number of its first line, and of that with the exception
    at: int = 0

    def tell(self, lines: Sequence[str], prefixed: bool, at: int) -> None:
        self.said, self.prefixed, self.at = list(lines), prefixed, at

    def read_box(self, text: str) -> None:
        if text:
            self.box += text
        elif found := _BOX_FRAME.match(self.box):
            self.frames.append(_Frame(found[1], found[2], found[3]))
        self.box = self.box if text else ""


def read_traceback(lines: Iterable[str]) -> Raised | None:
    """The exception that ended a program, by what it wrote to stderr; None where that tells of none."""
    told = [_COLOURS.sub("", line) for line in lines]
    if story := _last_story(told):
        raised, cause = _summary(story), _child_story(told) if _ECHO.match(story[-1].said[0]) else None
        return replace(_summary(cause), where=raised.where) if cause else raised
    hint = next((number for number in reversed(range(len(told))) if told[number].startswith(_HYDRA)), 0)
    paragraph = "\n".join(told[:hint]).rstrip().rpartition("\n\n")[2].splitlines()
    said = "\n".join(line for line in paragraph if not line.startswith(_HYDRA_FIRST))
    return Raised(said) if said else None


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended by what its watcher said at its end: type and message of the exception that nobody caught (empty: it
    ended without one), and where that was raised."""

    said: str = ""
    where: str | None = None


def read_ended(content: Any) -> ProgramEnd:
    """What a watcher said at the end of its program. Raises TypeError or ValueError where that makes no sense."""
    if content is None:
        return ProgramEnd()
    name, text, frames = content
    place = _place([_Frame(str(file), str(line), str(function)) for file, line, function in frames])
    return ProgramEnd(f"{name}: {text}" if text else str(name), place)


def read_final_traceback(lines: Iterable[str], exitcode: int, ended: ProgramEnd | None = None) -> Raised | None:
    """The exception that ended a program, by what it wrote to stderr and what its watcher said of its end (None: nothing, since
    the program was killed, left by os._exit, or has no watcher). None where it ended by something else.

    `exitcode` is negative for a signal. Python itself ends with 1 after an exception that nobody caught. Where one was caught
    and printed, the program went on if more follows it; if nothing follows it, the program ended because of it.
    """
    told = [_COLOURS.sub("", line) for line in lines]
    if ended and ended.said and (exitcode == 1 or exitcode < 0):
        return _printed(told, ended) or Raised(ended.said, ended.where)
    story = _last_story(told)
    if story is None or story[-1].prefixed or _UNCAUGHT.match(told[story[-1].at]):
        return read_traceback(told)
    if exitcode <= 0:
        return None
    rest = told[max(entry.at for entry in story) + 1 :]
    follows = [line for line in rest if not _FOLLOWS.match(line)]
    if rest and rest[-1].startswith(_HYDRA):  # at the end of a job of Hydra's, below the exception that ended it
        follows = []
    above = told[story[0].begins - 1] if story[0].begins else ""
    caught = ended is not None or exitcode != 1 or _LOGGED.search(above) or len(follows) > LONGEST_MESSAGE // 5
    return None if follows and caught else read_traceback(told)


def _printed(told: Sequence[str], ended: ProgramEnd) -> Raised | None:
    """The exception as it was printed, with those that led to it; None where it was not, or in a form that nobody knows."""
    kind, _, message = ended.said.partition(": ")
    for story in reversed(_stories(told)):
        tops = [entry for entry in story if entry.link != "part"] or story[:1]
        name, _, said = tops[-1].said[0].partition(": ")
        if name.rpartition(".")[2] == kind.rpartition(".")[2] and message.startswith(said):
            tops[-1].said = [f"{name}: {message}" if message else name]
            return _summary(story)
    return None


def _child_story(told: Sequence[str]) -> list[_Entry] | None:
    """The last exception that a child process printed: the cause where its parent only found the connection closed."""
    stories = [entry for entry in _entries(told) if entry.aside and entry.said]
    return [stories[-1]] if stories else None


def _last_story(told: Sequence[str]) -> list[_Entry] | None:
    """The exceptions of the last chain that was printed, as far as they did not come aside; None without one."""
    stories = _stories(told)
    return next((story for story in reversed(stories) if not story[0].aside), stories[-1]) if stories else None


def _stories(told: Sequence[str]) -> list[list[_Entry]]:
    """The exceptions of each chain that was printed."""
    stories: list[list[_Entry]] = []
    for entry in _entries(told):
        if entry.link and stories:
            stories[-1].append(entry)
        else:
            stories.append([entry])
    return [kept for story in stories if (kept := [entry for entry in story if entry.said])]


def _entries(lines: Sequence[str]) -> list[_Entry]:
    found: list[_Entry] = []
    entry: _Entry | None = None
    link, aside = "", False

    def begin() -> _Entry:
        nonlocal link, aside
        found.append(_Entry(link, aside, begins=number))
        link, aside = "", False
        return found[-1]

    for number, line in enumerate(lines):
        bare = _RANK.sub("", line)
        prefixed = bare != line
        text = bare if _PART.match(bare) else _MARGIN.sub("", bare)
        if _ASIDE.match(text):
            entry, aside = None, True
        elif _END.match(bare):
            entry = None
        elif _CHAIN.match(text) or _PART.match(text):
            entry, link = None, "chain" if _CHAIN.match(text) else "part"
            entry = begin() if _HEADER.search(text) else None
        elif _HEADER.search(text):
            entry = begin()
        elif place := _FRAME.match(text):
            if entry is None or entry.said:  # a traceback whose head is lost, or one within a message
                link = "part" if entry else link
                entry = begin()
            entry.frames.append(_Frame(place[1], place[2], place[3]))
        elif entry and not entry.said:
            if boxed := _BOX.match(text):
                entry.read_box(boxed[1])
            elif _EXCEPTION.match(text):
                entry.tell([text], prefixed, number)
        elif entry and not _ends_message(text, entry, prefixed):
            entry.said.append(text)
        else:
            said = _UNCAUGHT.match(text) or _BARE.match(text.strip())
            entry = begin() if said else None
            if entry and said:
                entry.tell([said[1] if said.re is _UNCAUGHT else said[0]], prefixed, number)
    return found


def _ends_message(text: str, entry: _Entry, prefixed: bool) -> bool:
    beyond = len(entry.said) >= LONGEST_MESSAGE or (entry.prefixed and not prefixed)
    return beyond or _NOISE.match(text) is not None or _UNCAUGHT.match(text) is not None


def _summary(story: Sequence[_Entry]) -> Raised:
    tops = [number for number, entry in enumerate(story) if entry.link != "part"] or [0]
    last = story[tops[-1]]
    parts = [entry for entry in story[tops[-1] + 1 :] if not _GROUP.search(_text(entry))]
    leaf = parts[0] if parts else last
    first = story[tops[0]]
    # Another process raised it, and it was raised here once more.
    again = first is not last and _text(first) == _text(leaf)
    frames = [*last.frames, *(leaf.frames if leaf is not last else first.frames if again else ())]
    return Raised(
        said=_text(leaf),
        where=_place(frames),
        first=_text(first) if first is not last and not again else "",
        within=_text(last).rstrip(": ") if leaf is not last else "",
    )


def _text(entry: _Entry) -> str:
    return "\n".join(line for line in entry.said if line.strip('" '))


def _place(frames: Sequence[_Frame]) -> str | None:
    """The last frame of the user's own code, else of ours, and the innermost one where that is another."""
    if not frames:
        return None
    own = [frame for frame in frames if frame.users] or [frame for frame in frames if frame.file.startswith(PACKAGE)]
    last = own[-1] if own else frames[-1]
    return f"{last}" if last is frames[-1] else f"{last}; raised in {frames[-1]}"
