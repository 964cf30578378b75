"""Starts workers as torchrun would: one in this process, several forked from a process that has torch imported."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path

import faulty_worker
import pytest
import torch
from hub_server import HubServer
from once import make_once, shared_folder
from training_jobs import SERVER, Job, Run, worker_environment

import slipway
from slipway.train.user import found
from slipway.train.user.joining import SIGNALS
from slipway.train.user.run import ResumableRun
from slipway.train.user.too_late import SEEDING
from slipway.train.worker.context import open_context

# Tests that start no worker and train nothing take milliseconds, and run for every change; these start programs that import torch.
TAKE_SECONDS = {
    "test_a_full_disk_leaves_nothing_half_written",
    "test_a_killed_rank_resumes_where_the_newest_checkpoint_is",
    "test_a_loop_is_proven_to_resume_exactly",
    "test_a_loop_killed_at_seeded_moments_ends_with_the_same_bits",
    "test_a_loop_that_was_broken_off_ends_like_one_that_was_not",
    "test_a_mistake_of_one_rank_ends_the_job_with_a_message",
    "test_a_model_of_transformers_is_fine_tuned_and_can_be_read_again",
    "test_a_script_that_trains_several_times_resumes_in_the_training_that_failed",
    "test_a_stop_ends_all_ranks_at_one_step_with_a_checkpoint",
    "test_a_training_without_a_fault_raises_no_alarm",
    "test_a_writer_that_dies_at_any_operation_leaves_the_snapshot_before_or_the_new_one",
    "test_it_trains_under_every_launcher",
    "test_of_two_processes_one_fetches",
    "test_one_model_over_two_devices_learns",
    "test_the_default_command_passes_97_percent_and_not_all_of_it",
    "test_the_triton_kernel_adds_all_blocks_also_one_that_is_not_full",
    "test_what_was_killed_goes_on_with_the_finished_pieces",
    "test_without_a_compiler_the_row_is_skipped_in_a_sentence",
}
STARTERS = {"server", "train", "alone", "wheel"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs for every change because it takes next to no time."""
    for item in items:
        marked = any(item.get_closest_marker(tier) for tier in ("core", "pull", "release"))
        starts = STARTERS & set(getattr(item, "fixturenames", ())) or getattr(item, "originalname", "") in TAKE_SECONDS
        if item.path.parent == Path(__file__).parent and not marked and not starts:
            item.add_marker("pull")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the workers have, so that sums are taken in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Run]:
    """Train a workload in this process. Keywords: `folder` (a name), `resume`."""

    def start(workload: str, *args: object, folder: str = "run", resume: str = "none") -> Run:
        path = tmp_path / folder
        code = 0
        try:
            with open_context(worker_environment(path, resume)) as context:
                import_module(f"slipway.train.workloads.{workload}").train(context, [str(arg) for arg in args])
        except SystemExit as error:
            code = int(error.code or 0)
        return Run(path, code, "")

    return start


@pytest.fixture(scope="session")
def few_objects() -> None:
    """What pytest keeps, a million objects, is not what a search for a script's objects looks through."""
    gc.freeze()


@pytest.fixture
def own_run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few_objects: None
) -> Iterator[None]:
    """This process may train with `slipway.resume`, in the run `run`, as a script that nothing else has started.

    A loop that is broken off leaves its handlers of signals, which the next one would take for the user's own, and looks at what
    the next one does.
    """
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(import_module("torch.optim.optimizer"), hooks, OrderedDict())
    for module, name in (*SEEDING, (random.Random, "seed")):
        monkeypatch.setattr(module, name, getattr(module, name))
    for name in [name for name in os.environ if name.startswith(("SLIPWAY_", "TORCHELASTIC"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLIPWAY_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(ResumableRun, "_leave", lambda run: None)
    monkeypatch.setattr("slipway.train.user.run.require_first", lambda: None)  # a test stands for several processes
    # Neither the other modules of tests are the script's, nor what pytest knows of all tests, which its fixtures lead to. To walk
    # through them takes a second each time.
    of_pytest = (
        pytest.Item,
        pytest.Collector,
        pytest.Config,
        pytest.FixtureRequest,
        pytest.MonkeyPatch,
        pytest.CaptureFixture,
    )
    monkeypatch.setattr(found, "LEAVES", (*found.LEAVES, *of_pytest))
    files = [getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]]
    others = {file for file in files if Path(file).name.startswith("test_")}
    others -= {request.module.__file__}
    is_users = found.is_users
    monkeypatch.setattr(found, "is_users", lambda names: names.get("__file__") not in others and is_users(names))
    monkeypatch.setattr("slipway.train.user.repeated.LEAST", float("inf"))  # seconds, which a busy machine takes
    usual = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGHUP)}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def server() -> None:
    """One process that imports torch, which takes seconds, and forks every worker."""
    here = Path(__file__).parent
    folders = (here, here.parent, Path(slipway.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))  # it does not take over sys.path
        SERVER.set_forkserver_preload(["faulty_worker"])
        forkserver.ensure_running()


@pytest.fixture
def start(tmp_path: Path, server: None) -> Iterator[Callable[..., Job]]:
    """Start workers. Keywords: `processes`, `folders` (names, one per node), `resume`, `memory`, `faults` (see faulty_worker)."""
    jobs: list[Job] = []

    def begin(
        workload: str,
        *args: object,
        processes: int = 2,
        folders: tuple[str, ...] = ("job",),
        resume: str = "none",
        memory: tuple[str, ...] = (),
        **faults: object,
    ) -> Job:
        jobs.append(Job([tmp_path / folder for folder in folders], memory))
        jobs[-1].start(workload, args, processes, resume, faults)
        return jobs[-1]

    yield begin
    for job in jobs:
        for worker in job.workers:
            worker.kill()
            worker.join()


@pytest.fixture
def job(start: Callable[..., Job]) -> Callable[..., Run]:
    """The same, to its end, as the first node sees it."""

    def run(*args: object, **more: object) -> Run:
        return start(*args, **more).end()[0]

    return run


@pytest.fixture
def programs(tmp_path: Path, server: None) -> Callable[..., str]:
    """Run `main` of a module with a training loop of its own on several processes; what they printed, once they have ended well."""

    def run(module: str, *args: object, processes: int = 2) -> str:
        job = Job([tmp_path / module])
        job.start(module, args, processes, work=faulty_worker.run_program)
        [ended] = job.end()
        assert ended.exit_code == 0, ended.output
        return ended.output

    return run


@pytest.fixture
def whole(server: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A job that nothing disturbs, to compare others with. Each is run once, whichever tests ask for it."""

    def run(workload: str, *args: object, processes: int = 2) -> Run:
        def work(folder: Path) -> None:
            job = Job([folder])
            job.start(workload, args, processes)
            [ended] = job.end()
            assert ended.exit_code == 0, ended.output

        name = hashlib.sha256(repr((workload, args, processes)).encode()).hexdigest()[:16]
        return Run(make_once(shared_folder(tmp_path_factory) / f"whole-{name}", work), 0, "")

    return run


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub on this machine and an empty cache, for this process and those that it starts; no waits between attempts."""
    import huggingface_hub
    from huggingface_hub import constants

    server, home = HubServer(), tmp_path / "huggingface"
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HF_ENDPOINT": server.url, "HF_HOME": home, "HF_TOKEN_PATH": home / "token"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    # The library reads its variables when it is imported, which in this process may have been long ago.
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    yield server
    huggingface_hub.close_session()
    server.close()


@pytest.fixture
def shared_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Data that are prepared once, as the glyphs, serve all tests of a session."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_folder(tmp_path_factory) / "cache"))
