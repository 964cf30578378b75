"""Which share of an image's bytes is read until the first training step, part by part.

    sudo .venv/bin/python bench/image_reads.py [--image slipway:dev-cpu]

The image's files are dropped from the page cache. Then a container runs until it reports its first step. The pages of these
files that are in the page cache by then were read from the disk, the kernel's read-ahead included: about what a file system
that fetches an image lazily would have to fetch. How busy the machine is makes no difference. Two jobs of two CPU processes are
measured, `gpt` and a script with DistributedDataParallel. Needs root, and a Docker Engine on this machine that keeps images
with overlay2.
"""

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

# The first that matches names the part, as the layers are called in images/README.md.
PARTS = (
    ("NVIDIA's libraries", re.compile(r"/site-packages/nvidia[/_]")),
    ("torch", re.compile(r"/site-packages/(torch|torchgen|functorch|triton)[/-]")),
    ("Slipway", re.compile(r"/site-packages/slipway[./-]")),
    ("other packages", re.compile(r"/opt/slipway/")),
    ("Debian and Python", re.compile("")),
)
STEP = re.compile(r"\bstep 1/")
AT_ONCE = 1000  # files for one call of fincore
OWN_SCRIPT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(4, 8)).square().mean().backward()
optimizer.step()
print("step 1/1", flush=True)
time.sleep(600)
"""
JOBS = {
    "gpt": ("gpt", "--preset", "tiny", "--nproc-per-node", "2", "--log-every", "1"),
    "own script": ("run", "--nproc-per-node", "2", "/script/own.py"),
}


def part_of(path: str) -> str:
    """The part of the image to which a file belongs."""
    return next(name for name, pattern in PARTS if pattern.search(path))


def read_layers(image: str) -> list[Path]:
    """The folders with an image's layers. SystemExit where the engine has no such image or keeps images in another way."""
    done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"there is no image {image}: {done.stderr.strip()}. Type: make image")
    driver = json.loads(done.stdout)[0]["GraphDriver"]
    if driver["Name"] != "overlay2":
        raise SystemExit(f"the engine keeps images with {driver['Name']}, and this reads those of overlay2 only")
    return [
        Path(folder)
        for folder in (driver["Data"]["UpperDir"], *driver["Data"].get("LowerDir", "").split(":"))
        if folder
    ]


def list_files(layers: list[Path]) -> dict[Path, int]:
    """The bytes of every file; of a file with several names, under one of them."""
    files: dict[tuple[int, int], tuple[Path, int]] = {}
    for layer in layers:
        for folder, _, names in os.walk(layer):
            for path in (Path(folder, name) for name in names):
                found = path.lstat()
                if path.is_file() and not path.is_symlink():
                    files[found.st_dev, found.st_ino] = path, found.st_size
    return dict(files.values())


def drop_from_cache(files: Mapping[Path, int]) -> None:
    """Let the kernel forget what it has of these files; pages that a process has mapped stay."""
    os.sync()
    for path in files:
        number = os.open(path, os.O_RDONLY)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(number)


def count_cached(files: Mapping[Path, int]) -> Counter[str]:
    """The bytes in the page cache, by part."""
    paths, cached = list(files), Counter[str]()
    for start in range(0, len(paths), AT_ONCE):
        command = ["fincore", "--json", "--bytes", "--output", "RES,FILE", *paths[start : start + AT_ONCE]]
        for row in json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["fincore"]:
            cached[part_of(row["file"])] += min(int(row["res"]), files[Path(row["file"])])  # whole pages
    return cached


def run_until_first_step(image: str, words: tuple[str, ...], folder: Path) -> None:
    """Run a container of the image until it reports its first step. SystemExit where it ends before."""
    name, said = f"slipway-reads-{secrets.token_hex(4)}", []
    options = ["--rm", "--name", name, "--network", "none", "--shm-size", "1g", "--volume", f"{folder}:/script:ro"]
    command = ["docker", "run", *options, image, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            said.append(line)
            if STEP.search(line):
                break
        else:
            raise SystemExit(f"{' '.join(words)} ended without a step:\n{''.join(said)}")
        return_code = subprocess.run(["docker", "kill", name], capture_output=True, check=False).returncode
        process.stdout.read()
    assert return_code == 0, name


def main() -> int:
    """Print the table in the form in which images/README.md has it; 1 where the image's files could not be dropped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="slipway:dev", metavar="NAME")
    image = parser.parse_args().image
    files = list_files(read_layers(image))
    sizes, read = Counter[str](), {}
    for path, size in files.items():
        sizes[part_of(str(path))] += size
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "own.py").write_text(OWN_SCRIPT)
        Path(folder).chmod(0o755)
        for job, words in JOBS.items():
            drop_from_cache(files)
            if left := count_cached(files).total():
                print(f"{left / 1e6:.1f} MB could not be dropped: does another container run?", file=sys.stderr)
            if left > sum(files.values()) / 100:
                return 1
            run_until_first_step(image, words, Path(folder))
            read[job] = count_cached(files)
    print(f"| {image} | MB | {' | '.join(f'read for {job}' for job in read)} |\n{'| --- ' * (2 + len(read))}|")
    for part, size in [*((name, sizes[name]) for name, _ in PARTS if sizes[name]), ("in all", sizes.total())]:
        counts = [count.total() if part == "in all" else count[part] for count in read.values()]
        print(
            f"| {part} | {size / 1e6:.0f} | {' | '.join(f'{count / 1e6:.0f} ({count / size:.0%})' for count in counts)} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
