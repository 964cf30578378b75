"""What images/README.md says of the image is what its labels, its build and its report say."""

import re

import pytest
from commands import IMAGE, ROOT, output
from packaging.version import Version

pytestmark = pytest.mark.pull

README = (ROOT / "images/README.md").read_text()
FLAT = " ".join(README.split())


def label(name: str) -> str:
    return output("docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{name}"}}}}', IMAGE)


def test_driver_and_compute_capability_are_those_of_the_labels() -> None:
    assert label("slipway.variant") == "cuda12"
    assert f"NVIDIA {label('slipway.minimum-driver')} or newer" in README
    first, last = label("slipway.compute-capability").split("-")
    assert f"compute capability {first} to {last}" in README
    main = re.search(r"NVIDIA driver (\S+) or newer", (ROOT / "README.md").read_text())
    assert main
    assert Version(label("slipway.minimum-driver")).major == Version(main[1]).major


def test_the_compute_capability_is_that_of_the_torch_inside() -> None:
    arches = output(
        "docker",
        "run",
        "--rm",
        "--entrypoint",
        "python",
        IMAGE,
        "-c",
        "import torch; print(torch._C._cuda_getArchFlags())",
    )
    numbers = sorted(int(arch) for arch in re.findall(r"sm_(\d+)", arches))
    assert label("slipway.compute-capability") == f"{numbers[0] / 10}-{numbers[-1] / 10}"


def test_the_layers_add_up() -> None:
    table = README[README.index("| layer |") :]
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|", table, re.MULTILINE)
    sizes = {name: (float(disk), float(packed)) for name, disk, packed in rows}
    total = sizes.pop("in all")
    assert [sum(column) for column in zip(*sizes.values(), strict=True)] == [
        pytest.approx(size, abs=2) for size in total
    ]


def test_what_was_left_out_is_what_trim_takes_out() -> None:
    reasons = re.findall(r'\bdrop "([^"]+)"', (ROOT / "images/slipway/trim.sh").read_text(), re.MULTILINE)
    assert len(reasons) == 17, "images/README.md lists what trim.sh takes out: change it along"
    assert "tried on CPUs only so far" in FLAT


def test_the_locked_down_run_is_the_one_that_is_tested() -> None:
    tested = "--user 12345:0 --read-only --tmpfs /tmp:exec,mode=1777 --cap-drop ALL --security-opt no-new-privileges"
    assert f"docker run --rm {tested} \\ --network none" in FLAT
