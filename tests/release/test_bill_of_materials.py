"""What the image says it is made of is what the lock says, and nobody's licence was left out."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from commands import IMAGE, ROOT, make, output
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

BILL = "/opt/slipway/share/sbom.cdx.json"
# The image's Python and platform, for the lock's markers.
INSIDE = {
    "python_version": "3.13",
    "python_full_version": "3.13.0",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}
# Not from the lock: Debian's Python brings it into the virtual environment.
NOT_LOCKED = {"pip"}
# Which files of an installed package are about its licence; run in the image.
LICENCES = """
import re, sys
from importlib.metadata import distributions
about = re.compile(r"(licen[cs]e|copying|notice|eula)[^/]*$|/licenses/", re.IGNORECASE)
for package in distributions():
    for file in package.files:
        if about.search(str(file)) and not str(file).endswith((".py", ".pyc", ".h")):
            print(package.name, file, file.locate().is_file(), sep="\\t")
"""


@pytest.fixture(scope="module")
def inside() -> Iterator[list[str]]:
    """Runs a program in the image."""
    with ExitStack() as undo:
        container = output("docker", "run", "--detach", "--entrypoint", "sleep", IMAGE, "600")
        undo.callback(output, "docker", "rm", "--force", container)
        yield ["docker", "exec", container]


@pytest.fixture(scope="module")
def bill(inside: list[str]) -> dict:
    return json.loads(output(*inside, "cat", BILL))


def locked() -> dict[str, tuple[str, set[str]]]:
    """Version and allowed checksums of every package that the lock installs in the image."""
    text = (ROOT / "locks/requirements.lock").read_text().replace("\\\n", " ")
    packages = {}
    for line in text.splitlines():
        requirement = Requirement(line.partition("--hash")[0])
        if requirement.marker is None or requirement.marker.evaluate(INSIDE):
            version = str(requirement.specifier).removeprefix("==")
            packages[canonicalize_name(requirement.name)] = version, set(re.findall(r"sha256:(\w{64})", line))
    return packages


@pytest.mark.pull
def test_it_lists_what_the_lock_installs_in_these_versions(bill: dict) -> None:
    listed = {canonicalize_name(part["name"]): part["version"] for part in bill["components"]}
    assert {name: version for name, version in listed.items() if name not in NOT_LOCKED} == {
        name: version for name, (version, _) in locked().items()
    }
    assert set(listed) >= NOT_LOCKED


def test_scanners_find_purl_and_checksum_of_every_package(bill: dict) -> None:
    lock = locked()
    for part in bill["components"]:
        name = canonicalize_name(part["name"])
        assert part["purl"].startswith(f"pkg:pypi/{name}@{part['version']}")
        if name not in NOT_LOCKED:
            assert [found["alg"] for found in part["hashes"]] == ["SHA-256"]
            assert {found["content"] for found in part["hashes"]} <= lock[name][1]


def test_it_says_who_needs_whom_and_is_about_slipway(bill: dict) -> None:
    about = bill["metadata"]["component"]
    assert about["name"] == "slipway"
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    assert any(ref.startswith("click==") for ref in needs[about["bom-ref"]])
    assert any(ref.startswith("nvidia-nccl-cu12==") for ref in needs["torch==2.10.0"])


def test_the_same_lock_gives_the_same_bill(bill: dict) -> None:
    assert bill["specVersion"] == "1.6"
    assert "serialNumber" not in bill
    assert "timestamp" not in bill["metadata"]


def test_a_release_gets_the_images_own_bill(bill: dict) -> None:
    file = ROOT / make("sbom", VERSION="9.9.9")
    assert file.name == "slipway-9.9.9-cuda12-torch2.10-amd64.cdx.json"
    assert json.loads(file.read_text()) == bill
    file.unlink()


def test_trimming_took_no_licence_of_a_python_package(inside: list[str]) -> None:
    files = [line.split("\t") for line in output(*inside, "python", "-c", LICENCES).splitlines()]
    assert {"torch", "numpy", "nvidia-nccl-cu12", "triton", "slipway"} <= {name for name, _, _ in files}
    assert [(name, file) for name, file, there in files if there != "True"] == []


def test_debians_packages_have_their_licences(inside: list[str]) -> None:
    look = "for package in $(dpkg-query --show --showformat '${Package} '); do stat /usr/share/doc/$package/copyright; done"
    output(*inside, "bash", "-e", "-c", look)


def test_our_own_licence_is_there(inside: list[str]) -> None:
    assert output(*inside, "cat", "/opt/slipway/share/licenses/LICENSE") == (ROOT / "LICENSE").read_text().strip()
