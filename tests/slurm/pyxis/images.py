"""Images for the stand-in, without importing 7 GB: the layers of an image of Docker's, mounted read-only over each other."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("srun", "task.py", "options.py", "container.py", "root.py", "kernel.py")


@contextmanager
def prepared(image: str, folder: Path, hosts: Sequence[Callable[..., object]]) -> Iterator[dict[str, str]]:
    """Put the stand-in into a folder that all users of the cluster can read, and mount the image there.

    Yields the variables with which a job finds it. `hosts` run a command where the mount is to be seen, in the
    mount namespace of each node. The image is known by all three kinds of references: `dockerd://IMAGE`,
    `registry#team/IMAGE` and `FOLDER/image.sqsh`. As root.
    """
    [found] = json.loads(subprocess.check_output(["docker", "image", "inspect", image]))
    layers = [
        found["GraphDriver"]["Data"][name] for name in ("UpperDir", "LowerDir") if name in found["GraphDriver"]["Data"]
    ]
    settings = found["Config"]
    root, programs, squashed = folder / "root", folder / "bin", folder / "image.sqsh"
    told = {
        "root": str(root),
        "env": dict(entry.split("=", 1) for entry in settings["Env"]),
        "entrypoint": settings["Entrypoint"] or [],
        "workdir": settings["WorkingDir"],
    }
    for made in (folder, root, programs, folder / "steps"):
        made.mkdir(exist_ok=True)
        made.chmod(0o755)
    (folder / "steps").chmod(0o1777)
    for name in PROGRAMS:
        shutil.copy(HERE / name, programs)
    squashed.touch()
    known = dict.fromkeys((f"dockerd://{image}", f"registry#team/{image}", str(squashed)), told)
    (folder / "images.json").write_text(json.dumps(known))
    mount = ["mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={':'.join(layers)}", str(root)]
    with ExitStack() as stack:
        for host in hosts:
            host(*mount)
            stack.callback(host, "umount", "--lazy", str(root))
        yield {
            "SLIPWAY_TEST_PYXIS_IMAGES": str(folder / "images.json"),
            "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin",
        }
