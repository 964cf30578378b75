"""What a script finds under `slipway run` and under `torchrun`: all that differs stands in docs/own-script.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

SHOW = """
import json, os, resource, signal, sys, threading

json.dump(
    {
        "arguments": sys.argv[2:],
        "file": __file__,
        "name": __name__,
        "folder": os.getcwd(),
        "path": sys.path,
        "flags": str(sys.flags),
        "input": sys.stdin.read() if os.environ["RANK"] == "0" else None,
        "environ": dict(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "signals": {number.name: str(signal.getsignal(number)) for number in signal.Signals},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
        "umask": os.umask(0),
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "terminals": [os.isatty(number) for number in (0, 1, 2)],
        "own session": os.getsid(0) == os.getpid(),
        "modules": sorted(sys.modules),
        "files": len(os.listdir("/proc/self/fd")),
    },
    open(f"{sys.argv[1]}-{os.environ['RANK']}.json", "w"),
)
"""
DOCUMENTED = (Path(__file__).parents[2] / "docs/own-script.md").read_text(encoding="utf-8")
ELSEWHERE = {"environ", "modules", "files"}  # compared name by name, or by the rows in words


def show(folder: Path, name: str, *words: str) -> tuple[int, dict[int, dict[str, object]]]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", *words, "--nproc-per-node", "2", "show.py", name, "a b", "--flag"],
        cwd=folder,
        env={**kept, "OWN": "kept as it is"},
        input="typed\n",
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, {rank: json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)}


def names_in_the_table() -> set[str]:
    section = DOCUMENTED.partition("### What differs from torchrun")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| ([^|]+) \|", section, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_a_script_finds_what_it_would_find_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    theirs_code, theirs = show(tmp_path, "theirs", "torch.distributed.run", "--master-port", "0", "--standalone")
    ours_code, ours = show(tmp_path, "ours", "slipway", "run")
    assert (theirs_code, ours_code) == (0, 0)
    known = names_in_the_table()
    for rank in range(2):
        there, here = theirs[rank], ours[rank]
        assert {key: value for key, value in there.items() if key not in ELSEWHERE} == {
            key: value for key, value in here.items() if key not in ELSEWHERE
        }
        before, after = there["environ"], here["environ"]
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert {"SLIPWAY_…" if name.startswith("SLIPWAY_") else name for name in differ} - known <= OF_ELASTIC
        assert after["OWN"] == "kept as it is"
        assert isinstance(here["modules"], list)
        assert isinstance(there["modules"], list)
        assert {*here["modules"]} - {*there["modules"]} - {*sys.builtin_module_names} == {"slipway", "slipway.watcher"}
        assert int(str(here["files"])) - int(str(there["files"])) in range(
            4
        )  # a socket, once it is connected, and a pipe


# What --standalone brings with its c10d rendezvous, in place of static.
OF_ELASTIC = {"MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_MAX_RESTARTS"}
