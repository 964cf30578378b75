"""Real launchers as processes: `slipway(...)` runs one to its end, `start(...)` leaves it running."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kept import Kept
from launchers import OWN_SCRIPT, PLAIN_SCRIPT, Launcher, start_launcher
from ports import take_ports
from s3_server import serve_s3
from s3_server import variables as s3_variables
from stand_in_rules import Rules

from slipway.store import open_store
from slipway.store.address import parse_store


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Start `slipway` in a folder of the test's own, with a clean environment; whatever is left is killed at the end."""
    running: list[Launcher] = []

    def launch(*words: str, before: tuple[str, ...] = (), **variables: str) -> Launcher:
        running.append(start_launcher(tmp_path, *words, before=before, **variables))
        return running[-1]

    yield launch
    for launcher in running:
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.wait()


@pytest.fixture
def slipway(start: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Run `slipway` to its end; the exit code is in `.process.returncode`."""

    def launch(*words: str, before: tuple[str, ...] = (), **variables: str) -> Launcher:
        launcher = start(*words, before=before, **variables)
        launcher.end()
        return launcher

    return launch


@pytest.fixture
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """What ranks are to do at which step; see stand_in_rules.py."""
    return Rules(tmp_path_factory.mktemp("rules") / "held")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A user's own program: plain torch.distributed, without any import of ours."""
    path = tmp_path / "own.py"
    path.write_text(OWN_SCRIPT)
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A program that ends in the same ways, and needs no torch."""
    path = tmp_path / "plain.py"
    path.write_text(PLAIN_SCRIPT)
    return path


@pytest.fixture
def node(start: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Start one node of a job whose nodes all live on this machine; `nodes` and `rank` count them."""
    port = take_ports(2)  # torchrun's store takes the next one

    def launch(rank: int, nodes: int | str, *words: str, before: tuple[str, ...] = (), **variables: str) -> Launcher:
        contract = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(nodes)}
        return start(*words, before=before, **{"NPROC_PER_NODE": "1", **contract, **variables})

    return launch


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.needs("S3 server"))])
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kept]:
    """A store; see kept.py."""
    folder = tmp_path_factory.mktemp("store")
    if request.param == "folder":
        yield Kept(open_store(parse_store(f"file://{folder}")), f"file://{folder}", {})
        return
    with serve_s3(folder) as port:
        for name, value in s3_variables(port).items():
            monkeypatch.setenv(name, value)
        yield Kept(open_store(parse_store("s3://test/jobs")), "s3://test/jobs", s3_variables(port))
