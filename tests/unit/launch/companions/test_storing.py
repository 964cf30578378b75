"""What `--store` refuses before anything starts."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_store import make_snapshot, steps_in
from ports import take_ports
from stand_ins import Slipway, make_devices, make_host, make_sources, plan_for
from waiting import wait_until

from slipway.inspect import stored
from slipway.launch.attempt.stops import Stops
from slipway.launch.companions import copies
from slipway.launch.companions.companion import Companion, WaitError
from slipway.launch.node import enter
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import NoNewRunError, Run
from slipway.process.machine import Clock
from slipway.protocol.errors import LaunchError
from slipway.store.copier import Assignment, Copier
from slipway.store.folder import FolderStore
from slipway.store.upload import Pace


@pytest.mark.parametrize(
    "address",
    [
        "runs",
        "s3:/bucket",
        "s3://Bad_Bucket",
        "hdfs://name/runs",
        "https://host/runs",
        "file://runs",
        "s3://key:secret@bucket",
    ],
)
@pytest.mark.parametrize("how", ["option", "environment", ".env"])
def test_what_is_no_address_of_a_store_ends_with_78_and_what_is_supported(
    slipway: Slipway, address: str, how: str
) -> None:
    if how == ".env":
        Path(".env").write_text(f"SLIPWAY_STORE={address}\n")
    words = ("--store", address) if how == "option" else ()
    answer = slipway("run", *words, "linear", **({"SLIPWAY_STORE": address} if how == "environment" else {}))
    assert (answer.code, answer.out) == (78, "")
    assert "s3://BUCKET" in answer.err or "absolute path" in answer.err, answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("address", ["s3://bucket/runs", "gs://bucket", "az://container/runs"])
def test_a_bucket_without_its_library_ends_with_78_and_the_command_to_type(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(copies, "find_spec", lambda name: None)
    answer = slipway("run", "--store", address, "linear")
    assert answer.code == 78
    assert "pip install 'obstore'" in answer.err.replace('"', "'"), answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("az://container", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "no base64"}),
        ("s3://bucket", {"AWS_CA_BUNDLE": "nowhere.pem"}),
        ("gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": "nowhere.json"}),
    ],
)
def test_credentials_that_make_no_sense_end_with_78_and_no_request(
    slipway: Slipway, address: str, variables: dict[str, str]
) -> None:
    pytest.importorskip("obstore")
    answer = slipway("run", "--store", address, "linear", **variables)
    assert answer.code == 78, answer.err
    assert f"{address} cannot be used: {address}: " in answer.err
    assert "Check the address, the credentials and their rights" in answer.err
    assert not Path("runs").exists()


def test_a_folder_that_is_not_there_ends_with_78(slipway: Slipway, tmp_path: Path) -> None:
    answer = slipway("run", "--store", f"file://{tmp_path}/not-mounted", "linear")
    assert answer.code == 78
    assert "not-mounted" in answer.err
    assert "mkdir" in answer.err
    assert not (tmp_path / "not-mounted").exists()


def test_a_run_that_the_store_has_already_is_not_overwritten(slipway: Slipway, tmp_path: Path) -> None:
    claims = tmp_path / "store/job/claims"
    claims.mkdir(parents=True)
    (claims / "00000003.json").write_text(json.dumps({"nonce": "x", "run": {"workload": "linear", "attempt": 3}}))
    answer = slipway("run", "--store", f"file://{tmp_path}/store", "--run-dir", "runs/job", "linear")
    assert answer.code == 78
    assert "has a run job already" in answer.err
    assert "--resume auto" in answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words", [("--runs", "kept"), ("--run-dir", "./kept/job"), ("--runs", "kept", "--resume", "auto")], ids=" ".join
)
def test_the_folder_of_runs_is_no_store(slipway: Slipway, words: tuple[str, ...]) -> None:
    Path("kept").mkdir()
    answer = slipway("run", "--store", f"file://{Path('kept').resolve()}", *words, "linear")
    assert answer.code == 78
    assert "is the folder of runs itself" in answer.err, answer.err
    assert [*Path("kept").iterdir()] == []


def test_a_name_that_no_object_can_have_is_refused(slipway: Slipway, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    answer = slipway("run", "--store", f"file://{tmp_path}/store", "--run-dir", "my run", "linear")
    assert answer.code == 78
    assert "its last part is the run's name in the store" in answer.err


def test_one_launcher_for_each_process_is_refused(slipway: Slipway, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    answer = slipway(
        "run", "--store", f"file://{tmp_path}/store", "--run-dir", "job", "linear",
        OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_LOCAL_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="0",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(take_ports(2)),
    )  # fmt: skip
    assert answer.code == 78
    assert "one launcher per node" in answer.err, answer.err


def test_a_plan_names_the_store_and_asks_it_nothing(slipway: Slipway) -> None:
    answer = slipway("plan", "--store", "s3://bucket/runs", "linear")
    assert answer.code == 0
    assert "s3://bucket/runs" in answer.out


def kept_run(tmp_path: Path, outcome: str = "finished", step: int = 20) -> str:
    """The address of a run in a store, as its copier left it."""
    (tmp_path / "store").mkdir()
    store, run = FolderStore(tmp_path / "store"), tmp_path / "run"
    make_snapshot(run, step)
    record = {"workload": "linear", "attempt": 1, "nodes": 1, "arguments": ["--steps", "20"]}
    (run / "run.json").write_text(json.dumps(record))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 20, "loss": 1.5}\n')
    copier = Copier(store, Assignment("job", 1, run, run, (0,), 2), Pace(), "me")
    copier.tick()
    if outcome:
        first = {"node_rank": 0, "host": "gone", "word": outcome, "evidence": "20 steps"}
        (run / "outcome.json").write_text(json.dumps({"word": outcome, "code": 0, "attempt": 1, "first": first}))
    copier.finish()
    return f"file://{tmp_path}/store/job"


def test_a_run_in_a_store_is_shown_from_any_machine(slipway: Slipway, tmp_path: Path) -> None:
    address = kept_run(tmp_path)
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (1_795_000_000.0,) * 2)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    answer = slipway("status", address, **cache)
    assert answer.code == 0, answer.err
    assert "ended       finished: node 0 (gone): 20 steps" in answer.out
    assert "snapshot    step 20" in answer.out
    assert re.search(rf"the newest snapshot in {address} is of step 20, \d+ s old", answer.out)
    known = json.loads(slipway("status", address, "--json", **cache).out)
    assert (known["snapshot"], known["outcome"]["word"], known["store"]["store"]) == (20, "finished", address)
    assert known["store"]["taken"] == 1_795_000_000.0, "it is as old as the copy and not as the fetch"
    answer = slipway("report", address, **cache)
    assert answer.code == 0, answer.err
    assert "2.5" in Path("report.html").read_text()


def test_of_a_run_that_has_the_name_of_a_deleted_one_nothing_older_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = kept_run(tmp_path)
    before = stored.fetch_run(address, snapshots=True)
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(tmp_path / "store")
    kept_run(tmp_path, outcome="", step=10)
    after = stored.fetch_run(address, snapshots=True)
    assert [path.name for path in (before / "snapshots").iterdir()] == ["step-00000020"]
    assert [path.name for path in (after / "snapshots").iterdir()] == ["step-00000010"]
    assert not (after / "outcome.json").exists()
    assert stored.fetch_run(address, snapshots=True) == after


def test_a_snapshot_that_the_job_has_set_aside_leaves_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address, run = kept_run(tmp_path, outcome=""), tmp_path / "run"
    path = stored.fetch_run(address, snapshots=True)
    (run / "snapshots/step-00000020").rename(run / "snapshots/suspect-step-00000020")
    make_snapshot(run, 10)
    Copier(FolderStore(tmp_path / "store"), Assignment("job", 1, run, run, (0,), 2), Pace(), "me").finish()
    assert stored.fetch_run(address, snapshots=True) == path
    assert [each.name for each in (path / "snapshots").iterdir()] == ["step-00000010"]


def test_a_run_in_a_store_without_an_outcome_may_still_run(slipway: Slipway, tmp_path: Path) -> None:
    answer = slipway("status", kept_run(tmp_path, outcome=""), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "no outcome in the store" in answer.out
    assert "its launcher was killed" not in answer.out


def test_of_a_run_that_finished_only_the_records_are_fetched(slipway: Slipway, tmp_path: Path) -> None:
    address = kept_run(tmp_path)
    words = ("run", "--store", address.removesuffix("/job"), "--run-dir", "there/job", "--resume", "auto")
    answer = slipway(*words, "linear", "--steps", "20")
    assert answer.code == 0, answer.err
    assert "is finished; there is nothing to resume" in answer.err
    assert sorted(path.name for path in Path("there/job").iterdir()) == ["metrics.jsonl", "outcome.json", "run.json"]


@pytest.mark.parametrize("claimed", [None, 1.0, 2.0], ids=["nothing was copied", "its claim was", "of another run"])
def test_a_finished_run_is_copied_when_it_is_started_again(
    slipway: Slipway, tmp_path: Path, claimed: float | None
) -> None:
    run, store = tmp_path / "runs/job", tmp_path / "store"
    (run / "node-0").mkdir(parents=True)
    store.mkdir()
    make_snapshot(run, 20)
    record = {"workload": "linear", "attempt": 1, "started": 1.0, "arguments": ["--steps", "20"]}
    (run / "run.json").write_text(json.dumps(record))
    (run / "outcome.json").write_text(json.dumps({"word": "finished", "attempt": 1}))
    if claimed:
        there = {"nonce": "of the launcher that trained", "run": {**record, "started": claimed}}
        (store / "job/claims").mkdir(parents=True)
        (store / "job/claims/00000001.json").write_text(json.dumps(there))
    words = ("run", "--store", f"file://{store}", "--run-dir", str(run), "--resume", "auto", "linear", "--steps", "20")
    for _ in range(2):  # the second time nothing is left to do
        answer = slipway(*words)
        assert answer.code == 0, answer.err
        assert "is finished; there is nothing to resume" in answer.err
        if claimed == 2.0:
            assert "attempt 1 of job belongs to another launcher" in answer.err
            assert not (store / "job/outcome.json").exists()
        else:
            assert f"copying what is new to file://{store}/job\n" in answer.err
            assert f"file://{store}/job has step 20, the newest snapshot" in answer.err
            assert any(path.name == "outcome.json" for path in store.rglob("*"))
    assert json.loads((run / "run.json").read_text()) == record


def test_what_could_not_be_copied_at_the_end_is_said_with_how_to_copy_it_later(
    slipway: Slipway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PATIENCE", 0.0)
    run = tmp_path / "runs/job"
    (run / "node-0").mkdir(parents=True)
    (tmp_path / "store").mkdir()
    make_snapshot(run, 20)
    (run / "run.json").write_text(json.dumps({"workload": "linear", "attempt": 1, "arguments": []}))
    (run / "outcome.json").write_text(json.dumps({"word": "finished", "attempt": 1}))
    ask = copies.Stores._ask

    def silent(stores: copies.Stores, request: dict[str, object], *more: object) -> object:
        if request["do"] == "finish":
            raise copies.SilentStoreError("no answer")
        return ask(stores, request, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(copies.Stores, "_ask", silent)
    answer = slipway("run", "--store", f"file://{tmp_path}/store", "--run-dir", str(run), "--resume", "auto", "linear")
    assert f"To copy the rest later, type the same command with --run-dir {run} --resume auto" in answer.err


@pytest.mark.parametrize("command", ["status", "report", "sample", "eval", "export"])
def test_a_run_that_is_not_in_the_store_is_a_mistake(slipway: Slipway, tmp_path: Path, command: str) -> None:
    (tmp_path / "store").mkdir()
    more = ("model",) if command == "export" else ()
    answer = slipway(command, f"file://{tmp_path}/store/nothing", *more, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert answer.code == 78, answer.err
    assert "There is no run" in answer.err
    answer = slipway(command, "s3://bucket", *more)
    assert answer.code == 78
    assert "the name of a run is missing" in answer.err
    answer = slipway(command, "hdfs://name/run", *more)
    assert answer.code == 78
    assert "hdfs:// is not supported" in answer.err


def test_a_mistyped_name_is_answered_with_what_the_store_has(slipway: Slipway, tmp_path: Path) -> None:
    address, cache = kept_run(tmp_path), {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "store/-").mkdir()
    assert slipway("status", address, **cache).out.startswith(f"{address}: linear, attempt 1\n")
    assert slipway("status", f"{address}b", **cache).err.rstrip().endswith("The store has job.")
    above = slipway("status", address.removesuffix("/job"), **cache)
    assert above.err.rstrip().endswith("Below it there are job."), above.err
    (tmp_path / "empty").mkdir()
    assert "The store is empty." in slipway("status", f"file://{tmp_path}/empty/job", **cache).err


class FailingStore(Companion):
    """A store of a job of several nodes that cannot be restored from."""

    def __init__(self, error: LaunchError) -> None:
        self._error = error

    def restore(self) -> None:
        raise self._error


def test_the_other_nodes_learn_of_a_store_that_refuses_and_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    job = Job(plan_for(("linear",), environ), make_sources(environ), make_devices(), environ, None, make_host())
    with ExitStack() as stack:
        assert enter(job, stack, companions=FailingStore(LaunchError("no such bucket"))).problem == "no such bucket"
        assert enter(job, stack, companions=FailingStore(NoNewRunError("has it already"))).occupied == "has it already"
        with pytest.raises(WaitError, match="does not answer"):
            enter(job, stack, companions=FailingStore(WaitError("it does not answer", 77)))


def test_a_process_that_copies_and_is_killed_is_started_again_and_continues_the_same_attempt(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    environ = {"SLIPWAY_STORE": f"file://{tmp_path}/store"}
    plan, sources = plan_for(("linear",), environ), make_sources(environ)
    job = Job(plan, sources, make_devices(), environ, None, make_host())
    run, said, now = Run(tmp_path / "job", "none", 1), list[str](), [0.0]
    make_snapshot(run.path, 10)
    (run.path / "node-0").mkdir()
    (run.path / "run.json").write_text('{"workload": "linear", "attempt": 1}')
    kept = FolderStore(tmp_path / "store")
    with Stops() as stops, copies.Stores(job, stops, said.append, Clock(monotonic=lambda: now[0])) as stores:
        stores.begin(run, plan.topology)
        for step, seconds in (
            (10, 61.0),
            (20, 59.0),
        ):  # it is started again at once at the end, and once a minute before
            wait_until(lambda step=step: steps_in(kept, "job")[:1] == [step], lambda: str(said))
            copying = stores._process
            assert copying is not None
            copying.kill()
            copying.wait()
            make_snapshot(run.path, step + 10)
            now[0] += seconds
            stores.poll(run)
            assert (stores._process is copying) == (step == 20)
    assert steps_in(kept, "job") == [30, 20]
    again = f"warning: the process that copies to file://{tmp_path}/store has ended; it is started again"
    assert said.count(again) == 2, said
    assert said[-1] == f"file://{tmp_path}/store/job has step 30, the newest snapshot"
