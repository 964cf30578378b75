"""What ended a program, by what it wrote to stderr. The files in `tracebacks` were printed by real programs: `group-3.11` by
Python 3.11, what rich, Hydra and loguru shortened or drew by 3.11, too, the others by 3.13; only folders have other names.
"""

import selectors
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.launch.hangs.stack_request import Listener
from slipway.protocol.tracebacks import PACKAGE, ProgramEnd, Raised, read_ended, read_final_traceback, read_traceback

SAMPLES = Path(__file__).with_name("tracebacks")
JSON = "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
LOADER = "KeyError: Caught KeyError in DataLoader worker process 0."
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:47843"
GROUP = "ValueError: bad batch of seven; within ExceptionGroup: loaders (2 sub-exceptions)"
COLLECTIVE = "torch/distributed/distributed_c10d.py:3014 in all_reduce"


@pytest.mark.parametrize(
    ("sample", "evidence", "where"),
    [
        ("chain", "RuntimeError: cannot build the optimizer: lr is missing; first came KeyError: 'lr'", "chain.py:5 in load"),
        ("colours", f"main.<locals>.Inner; first came {JSON}", "lib.py:10 in main"),
        ("data-loader", f"KeyError: 'x'; within {LOADER}", "to.py:18 in __getitem__"),
        ("future", "UnicodeError: part 3", "future.py:3 in tokenize"),
        ("gloo", f"RuntimeError: {GLOO}", f"to.py:26 in <module>; raised in {COLLECTIVE}"),
        ("group-3.11", GROUP, "group.py:2 in one"),
        ("group-3.13", GROUP, "group.py:2 in one"),
        ("hydra", "omegaconf.errors.ConfigAttributeError: Key 'model' is not in struct full_key: model object_type=dict", "hy.py:7 in train"),
        ("hydra-no-traceback", f"Error in call to target 'json.loads': JSONDecodeError('{JSON.partition(': ')[2]}')", None),
        ("hydra-override", "Could not override 'nope'. To append to your config use +nope=1 Key 'nope' is not in struct full_key: nope object_type=dict", None),
        ("ignored", "KeyError: 'x'", "delx.py:6 in main"),
        ("interrupt", "KeyboardInterrupt", "kbd.py:3 in <module>"),
        ("library", JSON, "js.py:3 in read; raised in json/decoder.py:360 in raw_decode"),
        ("loguru", "ZeroDivisionError: division by zero", "log.py:2 in f"),
        ("rich", f"RuntimeError: the configuration of this training cannot be read, since it is no JSON; first came {JSON.removeprefix('json.decoder.')}", "rich2.py:10 in main"),
        ("spawn", "LookupError: no shard for rank 0; within torch.multiprocessing.spawn.ProcessRaisedException", "spawned.py:3 in work"),
        ("syntax", "SyntaxError: invalid syntax", "syn.py:2"),
        ("syntax-import", "SyntaxError: invalid syntax", "syn.py:2"),
    ],
)  # fmt: skip
def test_a_real_traceback_says_what_was_raised_and_where(sample: str, evidence: str, where: str | None) -> None:
    raised = read_traceback((SAMPLES / f"{sample}.txt").read_text().splitlines())
    assert raised
    assert (raised.evidence, raised.where) == (evidence, where)


PROGRAMS = {
    "class Boom(Exception): pass\ndef f():\n    raise Boom('a\\n\\nb')\nf()\n": ("Boom: a b", "own.py:3 in f"),
    "def a(): b()\ndef b(): a()\na()\n": ("RecursionError: maximum recursion depth exceeded", "own.py:1 in a"),
    "import json\njson.loads('')\n": ("Expecting value: line 1 column 1 (char 0)", "own.py:2 in <module>; raised in json/"),
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyboardInterrupt from e\n": (
        "KeyboardInterrupt; first came ZeroDivisionError: division by zero", "own.py:4 in <module>",
    ),
    "e = ValueError('x')\ne.add_note('in shard 7')\nraise e\n": ("ValueError: x in shard 7", "own.py:3 in <module>"),
    "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nraise KeyError('mine')\n": ("KeyError: 'mine'", "own.py:5 in <module>"),
    "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nraise SystemExit(2)\n": ("ZeroDivisionError", "own.py:2 in <lambda>"),
    "raise ExceptionGroup('a', [ExceptionGroup('b', [OSError('leaf')])])\n": ("OSError: leaf; within ExceptionGroup: a (1 sub-exception)", "own.py:1 in <module>"),
    "x = [\n": ("SyntaxError: '[' was never closed", "own.py:1"),
    "raise ValueError\n": ("ValueError", "own.py:1 in <module>"),
}  # fmt: skip


@pytest.mark.parametrize("colours", ["", "1"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_so_does_one_of_this_python(tmp_path: Path, program: str, colours: str) -> None:
    (tmp_path / "own.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "own.py"],
        cwd=tmp_path,
        env={"FORCE_COLOR": colours},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    raised = read_traceback(done.stderr.splitlines()[-2_000:])
    evidence, where = PROGRAMS[program]
    assert raised
    assert evidence in raised.evidence
    assert (raised.where or "").startswith(where)


OWN = ["Traceback (most recent call last):", '  File "/home/me/own.py", line 9, in main', "    step()"]
PLACE = "own.py:9 in main"
DURING = ["", "During handling of the above exception, another exception occurred:", "", *OWN]
OURS = ["Traceback (most recent call last):", f'  File "{PACKAGE}train/loop/fit.py", line 3, in fit', "    step()"]
LIBRARY = ['  File "/usr/lib64/python3.13t/queue.py", line 2, in get', '  File "<frozen os>", line 7, in fork']


@pytest.mark.parametrize(
    ("lines", "raised"),
    [
        ([], None),
        (["loss 1.0", "INFO: all is well", "lr: 3"], None),
        (OWN, None),  # cut off
        (["ValueError: bad"], Raised("ValueError: bad")),
        (["  what():  bad", "frame #0: ??"], Raised("bad")),
        # Whose frame counts.
        ([*OWN, *OURS[1:], *LIBRARY, "Boom: x"], Raised("Boom: x", "own.py:9 in main; raised in <frozen os>:7 in fork")),
        ([*OURS, *LIBRARY, "Boom: x"], Raised("Boom: x", "fit.py:3 in fit; raised in <frozen os>:7 in fork")),
        ([*LIBRARY[:1], "Boom: x"], Raised("Boom: x", "queue.py:2 in get")),
        ([*LIBRARY, "Boom: x"], Raised("Boom: x", "<frozen os>:7 in fork")),
        # Where a message ends.
        ([*OWN, "Boom: x", "y", "[W1123 10:00:00.1 socket.cpp:7] late"], Raised("Boom: x\ny", "own.py:9 in main")),
        ([*OWN, "[rank1]: Boom: x", "[rank1]: y", "[rank1]:[W1123 10:00:00.1 a.cpp:7] z"], Raised("Boom: x\ny", "own.py:9 in main")),
        ([*OWN, "[rank1]: Boom: x", "[rank1]: y", "somebody else"], Raised("Boom: x\ny", "own.py:9 in main")),
        ([*OWN, "Boom: x", "/usr/lib/a.py:7: UserWarning: leaked"], Raised("Boom: x", "own.py:9 in main")),
        ([*OWN, "Boom: x", "node7:12:13 [0] NCCL INFO bye"], Raised("Boom: x", "own.py:9 in main")),
        ([*OWN, "Boom: x", *["more"] * 99], Raised("\n".join(["Boom: x", *["more"] * 49]), "own.py:9 in main")),
        # What stands in front of a line, and not within it.
        ([*OWN, "[rank1]: Boom: of [rank0]: x"], Raised("Boom: of [rank0]: x", PLACE)),
        ([*OWN, "Boom: rows  | and columns"], Raised("Boom: rows  | and columns", PLACE)),
        # Another process raised it.
        (["Original Traceback (most recent call last):", *OWN[1:], "Boom: x"], Raised("Boom: x", PLACE)),
        (
            [*OWN, "Boom: x", *DURING, "Bang: y", "", "Original Traceback (most recent call last):", *OWN[1:], "Leaf: z"],
            Raised("Leaf: z", PLACE, first="Boom: x", within="Bang: y"),
        ),
        # Which of several: the last one that ended the program.
        ([*OWN, "Boom: x", "", *OWN, "Bang: y"], Raised("Bang: y", "own.py:9 in main")),
        ([*OWN, "Boom: x", "terminate called after y", "  what():  z"], Raised("z")),
        ([*OWN, "Boom: x", "Exception ignored in: f", *OWN, "Bang: y"], Raised("Boom: x", "own.py:9 in main")),
        (["Process SpawnProcess-1:", *OWN, "Bang: y"], Raised("Bang: y", "own.py:9 in main")),
        (["Process SpawnProcess-1:", *OWN, "Boom: x", "Process SpawnProcess-2:", *OWN, "Bang: y"], Raised("Bang: y", "own.py:9 in main")),
    ],
)  # fmt: skip
def test_what_is_made_of_lines(lines: list[str], raised: Raised | None) -> None:
    assert read_traceback(lines) == raised


BUSY = "RuntimeError: the file server is busy"


@pytest.mark.parametrize(
    ("lines", "exitcode", "raised"),
    [
        # Nothing follows it, so it ended the program.
        ([*OWN, "Boom: x"], 3, Raised("Boom: x", PLACE)),
        # torch's hook prints only what nobody caught.
        ([*OWN, "[rank1]: KeyError: 'lr'", "bye"], -6, Raised("KeyError: 'lr'", PLACE)),
        # A log printed it, and the program ended by something else.
        (["loss 1", "loss 2", "loss 3", "ERROR:root:no snapshot yet", *OWN, "KeyError: 'lr'", *DURING, BUSY, "bye"], 1, None),
        ([*OWN, BUSY, "ERROR: bye"], 1, Raised(f"{BUSY}\nERROR: bye", PLACE)),
        ([*OWN, "KeyError: 'lr'", *DURING, BUSY, "ERROR: bye"], 1, Raised(f"{BUSY}\nERROR: bye", PLACE, first="KeyError: 'lr'")),
        # Ten lines may be the message's, eleven are a program's that went on.
        ([*OWN, BUSY, *["more"] * 10], 1, Raised("\n".join([BUSY, *["more"] * 10]), PLACE)),
        ([*OWN, BUSY, *["more"] * 11], 1, None),
        # A signal ends a program, whatever it printed before; one that ended with 0 got over it.
        ([*OWN, "KeyError: 'lr'"], 0, None),
        ([*OWN, "KeyError: 'lr'"], -11, None),
        ([*OWN, "KeyError: 'lr'", "terminate called after y", "  what():  z"], -6, Raised("z")),
    ],
)  # fmt: skip
def test_what_follows_an_exception_says_whether_it_ended_the_program(
    lines: list[str], exitcode: int, raised: Raised | None
) -> None:
    assert read_final_traceback(lines, exitcode) == raised


@pytest.mark.parametrize(("exitcode", "ended"), [(1, True), (-6, True), (0, False), (2, False), (3, False)])
def test_what_nobody_caught_ended_the_program_where_its_exit_code_says_so(exitcode: int, ended: bool) -> None:
    raised = read_final_traceback(["bye"], exitcode, ProgramEnd("KeyError: 'lr'", PLACE))
    assert raised == (Raised("KeyError: 'lr'", PLACE) if ended else None)


@pytest.mark.parametrize(
    ("printed", "raised"),
    [
        ([*OWN, "Boom: x"], Raised("Boom: x", PLACE)),
        (["Original Traceback (most recent call last):", *OWN[1:], "Boom: x"], Raised("Boom: x", PLACE)),
        ([*OWN, "Bang: y", *DURING, "Boom: x"], Raised("Boom: x", PLACE, first="Bang: y")),
        ([*OWN, "Boom: x", "", *OWN, "Bang: y"], Raised("Boom: x", PLACE)),  # which another part of the program caught
        ([*OWN, "Bang: x"], Raised("Boom: x", "elsewhere.py:1")),
        ([*OWN, "Boom: y"], Raised("Boom: x", "elsewhere.py:1")),
    ],
)
def test_what_nobody_caught_is_looked_for_in_what_was_printed(printed: list[str], raised: Raised) -> None:
    assert read_final_traceback(printed, 1, ProgramEnd("Boom: x", "elsewhere.py:1")) == raised


def of(program: str, folder: Path) -> tuple[int, list[str], ProgramEnd | None]:
    """The exit code of a program, what it wrote to stderr, and what its watcher said of its end."""
    (folder / "own.py").write_text(program)
    with selectors.DefaultSelector() as selector:
        listener = Listener([0], selector)
        environ = {**listener.open({}), "RANK": "0", "LOCAL_RANK": "0"}
        done = subprocess.run(
            [sys.executable, "own.py"], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True, check=False
        )
        listener.close()
    return done.returncode, done.stderr.splitlines(), listener.ended.get(0)


LOGS = "import logging, os, sys, traceback, warnings\nlogging.basicConfig(level=logging.INFO)\ntry:\n    {raises}\nexcept Exception:\n    {says}\n"
RAISES = [
    "open('/nonexistent/last.ckpt')",
    "{}['lr']",
    "raise RuntimeError('cuda is busy\\ntry again later')",
    "import nothing_like_that",
]
SAYS = [
    "logging.exception('no checkpoint yet')",
    "traceback.print_exc()",
    "logging.warning('slow', exc_info=True)",
    "warnings.warn('slow: ' + traceback.format_exc())",
]
STEPS = "for step in range({}):\n    print('step', step, file=sys.stderr)\n"
EXITS = {
    "sys.exit('validation set is empty: give --val')": (1, None),
    "raise SystemExit('no labels')": (1, None),
    "sys.exit('no labels:\\n  give --val')": (1, None),
    "print('usage: own.py', file=sys.stderr); sys.exit(2)": (2, None),
    "sys.stderr.flush(); os.kill(os.getpid(), 11)": (-11, None),
    "sys.stderr.flush(); os.kill(os.getpid(), 9)": (-9, None),
    "raise ValueError('no labels\\ngive --val')": (1, "ValueError: no labels\ngive --val"),
    "class Empty(KeyError): pass\nraise Empty": (1, "Empty"),
}
BARE = {"sys.exit(1)": (1, None), "sys.stderr.flush(); os._exit(3)": (3, None)}


@pytest.mark.parametrize(
    ("steps", "end"), [*((steps, end) for end in EXITS for steps in (0, 40)), *((1, end) for end in BARE)]
)
@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("raises", RAISES)
def test_an_exception_that_was_handled_did_not_end_the_program(
    tmp_path: Path, raises: str, says: str, steps: int, end: str
) -> None:
    code, lines, ended = of(LOGS.format(raises=raises, says=says) + STEPS.format(steps) + end, tmp_path)
    expected, said = {**EXITS, **BARE}[end]
    assert code == expected
    raised = read_final_traceback(lines, code, ended)
    assert (raised.said if raised else None) == said


@pytest.mark.parametrize("raises", [*RAISES[:2], "raise RuntimeError('cuda is busy')", RAISES[3]])
@pytest.mark.parametrize("end", ["sys.exit(1)", "sys.exit(3)", "os._exit(2)"])
def test_one_that_was_logged_counts_where_the_program_ends_by_itself_and_nothing_follows_it(
    tmp_path: Path, raises: str, end: str
) -> None:
    code, lines, ended = of(LOGS.format(raises=raises, says=SAYS[0]) + end, tmp_path)
    raised = read_final_traceback(lines, code, ended)
    assert raised
    assert raised.where == "own.py:4 in <module>"


AT_EXIT = "import atexit, sys\natexit.register(lambda: print('upload done', file=sys.stderr))\n"
HOOK = "import sys\nsys.excepthook = lambda kind, error, trace: print('it went wrong', file=sys.stderr)\n"
CLOSED = "import sys\nsys.stderr.close()\n"
CAUGHT = LOGS.format(raises="{}['lr']", says=SAYS[1])
CHAINED = "try:\n    {}['lr']\nexcept KeyError as error:\n    raise ValueError('no lr') from error\n"
NOTED = "error = ValueError('no lr')\nerror.add_note('in model.yaml')\nraise error\n"


@pytest.mark.parametrize(
    ("program", "evidence", "place"),
    [
        (AT_EXIT + "{}['lr']", "KeyError: 'lr'", "own.py:3 in <module>"),
        (HOOK + "{}['lr']", "KeyError: 'lr'", "own.py:3 in <module>"),
        (CLOSED + "{}['lr']", "KeyError: 'lr'", "own.py:3 in <module>"),
        (HOOK + "import json\njson.loads('')", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "own.py:4 in <module>; raised in json/decoder.py:"),
        (CAUGHT + "raise KeyError('momentum')", "KeyError: 'momentum'", "own.py:7 in <module>"),
        (CAUGHT + HOOK + "{}['momentum']", "KeyError: 'momentum'", "own.py:9 in <module>"),
        (AT_EXIT + CHAINED, "ValueError: no lr; first came KeyError: 'lr'", "own.py:6 in <module>"),
        (AT_EXIT + NOTED, "ValueError: no lr in model.yaml", "own.py:5 in <module>"),
        (HOOK + "class Odd(Exception):\n    def __str__(self):\n        return 1 / 0\nraise Odd", "Odd", "own.py:6 in <module>"),
        (AT_EXIT + "raise KeyboardInterrupt", "KeyboardInterrupt", "own.py:3 in <module>"),
    ],
)  # fmt: skip
def test_one_that_nobody_caught_did_whatever_else_was_printed(
    tmp_path: Path, program: str, evidence: str, place: str
) -> None:
    code, lines, ended = of(program, tmp_path)
    raised = read_final_traceback(lines, code, ended)
    assert raised
    assert raised.evidence == evidence
    assert (raised.where or "").startswith(place)


def test_one_that_a_shell_within_the_program_showed_did_not_end_it(tmp_path: Path) -> None:
    """code.interact and IPython keep it in sys.last_value, too."""
    program = "import code, sys\ncode.InteractiveInterpreter().runsource('1 / 0')\nprint('bye', file=sys.stderr)\nsys.exit(3)\n"
    code, lines, ended = of(program, tmp_path)
    assert ended
    assert ended.said == "ZeroDivisionError: division by zero"
    assert read_final_traceback(lines, code, ended) is None


def test_below_a_job_of_hydras_is_what_ended_it_however_many_lines_it_has() -> None:
    message = ["OSError: gpt3 is no folder here.", "If it is private, log in."]
    lines = [
        "Error executing job with overrides: []",
        *OWN,
        *message,
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ]
    assert read_final_traceback(lines, 1, ProgramEnd()) == Raised("\n".join(message), PLACE)


@pytest.mark.parametrize("content", [3, [], ["KeyError", "'lr'"], ["KeyError", "'lr'", [["own.py", 3]]]])
def test_what_no_watcher_says_of_an_end_is_refused(content: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_ended(content)


@pytest.mark.parametrize("tracker", ["wandb: ", "COMET INFO: ", "[neptune] [info   ] ", "swanlab: ", "ClearML Task: "])
def test_the_summary_of_an_experiment_tracker_is_no_sign_that_the_program_went_on(tracker: str) -> None:
    raised = read_final_traceback([*OWN, "KeyError: 'lr'", *[f"{tracker}loss {step}" for step in range(30)]], 1)
    assert raised
    assert raised.said.startswith("KeyError: 'lr'")


def test_the_message_of_an_import_error_may_have_several_lines() -> None:
    message = ["ImportError: flash_attn is not installed.", "Run `pip install flash-attn`."]
    assert read_final_traceback([*OWN, *message], 1) == Raised("\n".join(message), "own.py:9 in main")


@pytest.mark.parametrize("sample", sorted(file.stem for file in SAMPLES.glob("*.txt")))
def test_what_ended_a_real_program_still_did(sample: str) -> None:
    lines = (SAMPLES / f"{sample}.txt").read_text().splitlines()
    assert read_final_traceback(lines, 1) == read_traceback(lines)


@pytest.mark.parametrize("program", PROGRAMS)
def test_and_so_did_one_of_this_python(tmp_path: Path, program: str) -> None:
    code, lines, ended = of(program, tmp_path)
    raised, printed = read_final_traceback(lines, code, ended), read_traceback(lines)
    assert raised
    assert printed
    assert (raised.evidence.partition(" (own.py, line")[0], raised.where) == (printed.evidence, printed.where)


MANAGER = [
    "Process SyncManager-1:",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.12/multiprocessing/connection.py", line 594, in __init__',
    "    self._socket.bind(address)",
    "OSError: AF_UNIX path too long",
    *OWN,
    '  File "/usr/lib/python3.12/multiprocessing/connection.py", line 399, in _recv',
    "    raise EOFError",
]


@pytest.mark.parametrize(
    "echo", ["EOFError", "BrokenPipeError: [Errno 32] Broken pipe", "ConnectionResetError: [Errno 104] reset"]
)
def test_what_a_child_said_is_the_cause_of_a_closed_connection(echo: str) -> None:
    raised = read_traceback([*MANAGER, echo])
    assert raised
    assert raised.evidence == "OSError: AF_UNIX path too long"
    assert (raised.where or "").startswith("own.py:9 in main")
    chained = read_traceback([*MANAGER[:5], *OWN, "KeyError: 1", *DURING, echo])
    assert chained
    assert chained.evidence == "OSError: AF_UNIX path too long"
    mine = read_traceback([*MANAGER, "ValueError: mine"])
    assert mine
    assert mine.evidence == "ValueError: mine"
    alone = read_traceback([*MANAGER[5:], echo])
    assert alone
    assert alone.evidence == echo
