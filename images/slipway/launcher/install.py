"""Put the launcher into an image of one's own: `RUN --mount=from=slipway:launcher,target=/s python /s/install`.

docs/own-image.md describes it. It unpacks the wheels beside it into /opt/slipway for the Python that has PyTorch, and needs
neither pip nor a network. It runs on Python 3.6 and newer, so that a Python that is too old for Slipway is refused by its name
and not by a SyntaxError.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PARTS, TARGET = Path(__file__).resolve().parent, Path("/opt/slipway")
OLDEST, NEWEST = (3, 11), (3, 13)  # as pyproject.toml has it
LEAST_TORCH = (2, 9)  # as slipway.launch.resolve.packages has it
NAMES = ("python", "python3", "python3.13", "python3.12", "python3.11")
FOLDERS = ("/opt/conda/bin", "/opt/venv/bin", "/usr/local/bin", "/usr/bin")
WRITABLE = (Path("/checkpoints"), Path("/data"))  # as in Slipway's own images: results and caches
CONFIGURATION = 78  # as slipway.protocol.errors has it
# What a Python says of itself, in JSON. `site`: the last of its folders of packages.
PROBE = """
import importlib.util, json, os, re, site, sys
def find(name):
    found = importlib.util.find_spec(name)
    return os.path.dirname(found.origin) if found and found.origin else ""
torch = find("torch")
text = open(os.path.join(torch, "version.py")).read() if torch else ""
version = re.search(r"^__version__ = ['\\"]([^'\\"]+)", text, re.MULTILINE)
print(json.dumps({"python": sys.executable, "version": sys.version_info[:3], "torch": version.group(1) if version else torch,
                  "slipway": find("slipway"), "site": site.getsitepackages()[-1]}))
"""
# Slipway's own processes (`python -P -u -m slipway…`) find its packages first, all others find them last: the image may have
# another click. Python 3.10 and older may read the same folder of packages.
SEARCH = (
    "import sys; sys.version_info >= (3, 11) and sys.path.insert("
    '0 if "-m slipway" in " ".join(sys.orig_argv[:5]) else len(sys.path), "{target}/lib")\n'
)
# PATH: for py-spy. SLIPWAY_IMAGE: this is a container, in which results go to /checkpoints.
PROGRAM = """#!/bin/sh
export PATH="$PATH:{target}/bin" SLIPWAY_IMAGE="${{SLIPWAY_IMAGE:-{version}-own}}"
exec "{python}" -P -m slipway "$@"
"""
# As entrypoint.sh of Slipway's own images.
ENTRY = """#!/bin/sh
[ $$ -ne 1 ] || exec {target}/bin/tini -- {target}/bin/slipway "$@"
exec {target}/bin/slipway "$@"
"""


class RefusedError(Exception):
    """Why nothing is installed, and what to do."""


def find_python():
    """What the Python that has PyTorch says of itself: the one that runs this, or else the first of PATH and the usual folders.

    Raises RefusedError if there is none.
    """
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *FOLDERS]
    programs = [Path(sys.executable), *(Path(folder, name) for folder in folders for name in NAMES)]
    without = {}
    for program in programs:
        try:
            answer = subprocess.check_output([str(program), "-c", PROBE], stderr=subprocess.DEVNULL, cwd="/")
            found = json.loads(answer.decode())
        except (OSError, ValueError, subprocess.CalledProcessError):  # there is none, or it is Python 2
            continue
        found["name"] = f"Python {'.'.join(map(str, found['version']))} ({found['python']})"
        if found["torch"]:
            return found
        without.setdefault(program.resolve(), found["name"])
    raise RefusedError(
        f"no Python here has PyTorch, which every job needs; without it are: {', '.join(without.values())}. Put this line after "
        f"the one that installs PyTorch. If its Python is not on PATH, name it: RUN --mount=… /path/to/python {sys.argv[0]}"
    )


def require_fitting(found):
    """Raise RefusedError if this Python cannot run the launcher, or if the image has another Slipway."""
    name, torch = found["name"], found["torch"]
    if not OLDEST <= tuple(found["version"][:2]) <= NEWEST:
        versions = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise RefusedError(f"{name} has PyTorch, but Slipway needs Python {versions}. Use an image with one of these.")
    numbers = torch.split(".")[:2]
    if all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < LEAST_TORCH:
        raise RefusedError(
            f"{name} has PyTorch {torch}, but Slipway needs PyTorch {'.'.join(map(str, LEAST_TORCH))} or newer."
        )
    if found["slipway"] not in ("", str(TARGET / "lib/slipway")):
        raise RefusedError(
            f"{name} has a Slipway of its own in {found['slipway']}, which scripts would import instead. Remove it in a line "
            f"before this one: RUN {found['python']} -m pip uninstall --yes slipway"
        )
    if TARGET.exists() and not (TARGET / "entry").exists():
        raise RefusedError(f"this is an image of Slipway's own ({TARGET} is there), which needs no second launcher.")
    if not (PARTS / f"tini-{platform.machine()}").exists():
        raise RefusedError(f"this image is for {platform.machine()}, and Slipway is for x86_64 and aarch64.")


def write(path, content, mode=0o644):
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)


def unpack(machine):
    """Unpack the wheels for this machine: modules to lib, programs to bin, what describes them to share.

    Returns Slipway's version.
    """
    version = ""
    for file in sorted((PARTS / "wheels").iterdir()):
        if not file.name.endswith(("any.whl", f"{machine}.whl")):
            continue
        package, number, *_ = file.name.split("-")
        version = number if package == "slipway" else version
        with zipfile.ZipFile(str(file)) as wheel:
            for entry in wheel.namelist():
                top = entry.partition("/")[0]
                place, mode = TARGET / "lib" / entry, 0o644
                if top.endswith(".data"):  # PACKAGE.data/scripts/PROGRAM
                    place, mode = TARGET / "bin" / place.name, 0o755
                elif top.endswith(".dist-info"):  # the image's pip must not count packages that only Slipway uses
                    place = TARGET / "share" / entry
                if not entry.endswith("/"):
                    write(place, wheel.read(entry), mode)
    return version


def install(found):
    """Write everything, and say what that is. Raises OSError."""
    os.umask(0o022)
    shutil.rmtree(str(TARGET), ignore_errors=True)  # of an earlier installation
    machine = platform.machine()
    version = unpack(machine)
    write(TARGET / "bin/tini", (PARTS / f"tini-{machine}").read_bytes(), 0o755)
    write(TARGET / "share/tini.copyright", (PARTS / "tini.copyright").read_bytes())
    write(TARGET / "bin/slipway", PROGRAM.format(target=TARGET, version=version, python=found["python"]), 0o755)
    write(TARGET / "entry", ENTRY.format(target=TARGET), 0o755)
    watcher = Path(found["site"], "slipway.pth")
    write(watcher, SEARCH.format(target=TARGET) + (TARGET / "lib/slipway.pth").read_text())
    # Now, since nothing is written when a job starts: the root may be read-only, and the user anybody.
    compiling = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(TARGET / "lib")]
    subprocess.check_call([found["python"], *compiling])
    link = Path(found["python"]).with_name("slipway")
    if not os.path.lexists(str(link)):
        link.symlink_to(TARGET / "bin/slipway")
    for folder in WRITABLE:
        if not folder.exists():
            folder.mkdir()
            os.chown(str(folder), -1, 0)
            folder.chmod(0o2775)
    print(f"slipway: {found['name']} has torch {found['torch']}")
    print(f"slipway: wrote {TARGET}, {watcher} and {link}; results go to {WRITABLE[0]}, caches to {WRITABLE[1]}")
    said = subprocess.check_output([str(TARGET / "bin/slipway"), "--version"], cwd="/").decode()
    print(f'{said.strip()} is installed. Now write: ENTRYPOINT ["{TARGET}/entry"]')


def main():
    """Install, or say why not."""
    try:
        found = find_python()
        require_fitting(found)
        install(found)
    except RefusedError as why:
        print(f"slipway: {why}", file=sys.stderr)
        return CONFIGURATION
    except PermissionError as error:
        why = (
            f"user {os.getuid()} cannot write {error.filename}. Put USER root before this line, and your USER after it."
        )
        print(f"slipway: {why}", file=sys.stderr)
        return CONFIGURATION
    return 0


if __name__ == "__main__":
    sys.exit(main())
