"""The launcher in images that are not based on ours, put there by the line of docs/own-image.md.

The images are made of the one under test, since no registry answers: its Python and its torch, moved to where other images have
them, without anything of Slipway's. docs/own-image.md says what was tried besides.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from containers import IMAGE, PATIENCE, WELL, Containers, docker, fresh_name

ROOT = Path(__file__).parents[2]
MOST = 15e6  # bytes
LOCKED = f"--user 1001 --read-only --tmpfs /tmp:exec,mode=1777 --cap-drop ALL --stop-timeout 120 {WELL}"
# No folder of a volume's is one of the user's scripts: they are mounted read-only.
UNWRITABLE = ("the working directory /workspace cannot be written",)

WITHOUT_OURS = f"""
FROM {IMAGE}
USER 0
ENTRYPOINT []
ENV SLIPWAY_IMAGE="" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
# torch that only says which version it is, and a package of the launcher's by the same name that is no use to it.
STAND_IN = f"""{WITHOUT_OURS}
RUN rm -r /opt/slipway /checkpoints /data /usr/bin/tini && cd $(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \\
    && mkdir torch && touch torch/__init__.py && echo "__version__ = '2.12.0a0+nv'" >torch/version.py \\
    && echo 'print("the image has its own")' >click.py
"""
PACKAGES = f"""{WITHOUT_OURS}
RUN rm -r /checkpoints /data /usr/bin/tini && mv /opt/slipway/lib/python3*/site-packages /opt/packages \\
    && rm -r /opt/slipway /opt/packages/slipway*
"""
# A prefix of its own with the only Python, which PATH alone leads to.
CONDA = """
FROM {packages}
RUN v=$(cd /usr/bin && ls -d python3.??) && mkdir -p /opt/conda/bin /opt/conda/lib && mv /usr/bin/$v /opt/conda/bin/ \\
    && mv /usr/lib/$v /opt/conda/lib/ && rm /usr/bin/python3 && ln -s $v /opt/conda/bin/python \\
    && mkdir -p /opt/conda/lib/$v/dist-packages && ln -s /opt/packages/* /opt/conda/lib/$v/dist-packages/
ENV PATH=/opt/conda/bin:$PATH
RUN --mount=from={launcher},target=/s python /s/install
ENTRYPOINT ["/opt/slipway/entry"]
"""
# The system's Python, a version of torch with another ending, an entrypoint and variables of its own.
NVIDIAS = """
FROM {packages}
ENV PIP_CONSTRAINT=/etc/pip/constraint.txt PYTORCH_VERSION=2.12.0a0+nv NVIDIA_PYTORCH_VERSION=26.01 NVIDIA_VISIBLE_DEVICES=all \\
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video OPAL_PREFIX=/opt/hpcx/ompi OMPI_MCA_coll_hcoll_enable=0 BASH_ENV=/etc/bash.bashrc
RUN ln -s /opt/packages/* $(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ \\
    && sed -i "s/^__version__ = .*/__version__ = '2.12.0a0+nv'/" /opt/packages/torch/version.py \\
    && mkdir -p /opt/nvidia && printf '#!/bin/bash\\necho == PyTorch ==\\nexec "$@"\\n' >/opt/nvidia/nvidia_entrypoint.sh \\
    && chmod 755 /opt/nvidia/nvidia_entrypoint.sh
RUN --mount=from={launcher},target=/s python3 /s/install
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "/opt/slipway/entry"]
"""
HANGS = """
import threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank():
    threading.Event().wait()
dist.all_reduce(torch.ones(4))
"""


def build(dockerfile: str, undo: ExitStack) -> str:
    """Build an image without a network, from a Dockerfile that copies nothing; its name."""
    name = fresh_name()
    words = ["docker", "buildx", "build", "--load", "--progress", "plain", "--network", "none", "--tag", name, "-"]
    done = subprocess.run(words, input=dockerfile, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    undo.callback(docker, "image", "rm", "--force", "--no-prune", name)
    return name


@pytest.fixture(scope="module")
def made() -> Iterator[ExitStack]:
    """Removes at the end what the tests here share."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def launcher(made: ExitStack) -> str:
    """What `make launcher` builds, on the base of the image under test."""
    name = fresh_name()
    base = docker(
        "image", "inspect", "--format", '{{index .Config.Labels "org.opencontainers.image.base.name"}}', IMAGE
    )
    settings = [f"IMAGE={name}", f"BASE={base.strip()}", "VARIANT=cpu", "TARGET=launcher"]
    done = subprocess.run(
        ["env", *settings, ROOT / "images/build.sh"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    made.callback(docker, "image", "rm", "--force", "--no-prune", name)
    return name


@pytest.fixture(scope="module")
def packages(made: ExitStack) -> str:
    """An image with torch in /opt/packages, and nothing of Slipway's."""
    return build(PACKAGES, made)


@pytest.mark.pull
@pytest.mark.timeout(600)
def test_a_line_of_a_dockerfile_puts_the_launcher_into_an_image(
    launcher: str, container: Containers, undo: ExitStack, tmp_path: Path
) -> None:
    assert json.loads(docker("image", "inspect", launcher))[0]["Size"] <= MOST
    line = f"RUN --mount=from={launcher},target=/s python3 /s/install"
    own = build(f'{STAND_IN}\n{line}\n{line}\nENTRYPOINT ["/opt/slipway/entry"]\n', undo)
    tmp_path.chmod(0o755)
    (tmp_path / "train.py").touch()
    mounted = f"{LOCKED} --network none --volume {tmp_path}:/workspace:ro"
    job = container(f"{mounted} {own} plan --all train.py", warns=UNWRITABLE)
    assert "2 CPU processes" in job.text, "the command is understood as in our image"
    assert re.search(r"SLIPWAY_RUNS +/checkpoints\b", job.text), "and the results go to the same place"
    assert "the image has its own" not in job.text, "the launcher takes its own packages"
    assert "Did you mean train.py?" in container(f"{mounted} {own} plan tarin.py", code=78).text
    shown = container(
        f"{mounted} {own} sh -c 'cat /proc/1/comm; python3 -c \"import slipway, click\"; slipway --version'"
    )
    first, others, version = shown.stdout.splitlines()
    assert (first, others) == ("tini", "the image has its own")
    assert version.endswith("-own)")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("dockerfile", [CONDA, NVIDIAS], ids=["conda", "nvidia's"])
def test_jobs_end_in_it_as_in_ours(
    launcher: str, packages: str, dockerfile: str, container: Containers, undo: ExitStack, tmp_path: Path
) -> None:
    own = build(dockerfile.format(launcher=launcher, packages=packages), undo)
    tmp_path.chmod(0o755)
    shutil.copy2(ROOT / "examples/own_loop.py", tmp_path / "train.py")
    (tmp_path / "hangs.py").write_text(HANGS)
    start = f"{LOCKED} --volume {tmp_path}:/workspace:ro {own} run --nproc-per-node 2"
    job = container(f"{start} train.py --epochs 2", warns=UNWRITABLE)
    assert "epoch 2 of 2" in job.stdout
    assert ("== PyTorch ==" in job.stdout) == (dockerfile == NVIDIAS), "the image's own entrypoint comes first"
    job = container.start(f"{start} train.py --epochs 100000", warns=UNWRITABLE)
    job.wait_for("epoch 3 of")
    docker("stop", job.name)
    job.wait(75)
    job = container(
        f"{start.replace(own, f'-e SLIPWAY_HANG_SECONDS=6 {own}')} --on-hang end hangs.py", warns=UNWRITABLE, code=76
    )
    assert "rank 1 (node 0) has not reached all_reduce #2" in job.text, "the watcher is in the workers"
    assert "rank 1 (node 0) is at hangs.py:6 <module>()" in job.text
