"""Kubeflow Trainer is told how far the training is, over TLS with a token that changes, and never at the training's cost."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from stand_ins import make_devices, make_host, make_sources, plan_for
from waiting import wait_until

from slipway.launch.attempt import train_job_status
from slipway.launch.attempt.attempt import progress_elsewhere
from slipway.launch.attempt.train_job_status import TrainJobStatus, make_status, post, seconds_left
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.heartbeats import Beat, newest_numbers
from slipway.launch.run_directory.run import Run
from slipway.protocol.files import HEARTBEATS, METRICS_FILE, rank_file, write_json
from slipway.protocol.phases import Phase

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/slipway/status"


@dataclass
class Trainer:
    """A status server: what it was posted, with which token, and what it answers."""

    environ: dict[str, str]
    posts: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    answer: int = 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "ca.crt", folder / "server.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


@pytest.fixture
def trainer(certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[Trainer]:
    """A status server, and the variables that its controller puts into a pod."""
    token = tmp_path / "token"
    token.write_text("first\n")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.posts.append((self.path, self.headers["Authorization"], body))
            self.send_response(made.answer)
            self.end_headers()
            self.wfile.write(b'{"kind": "Status", "message": "no such job"}')

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("localhost", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made = Trainer(
        {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{server.server_port}{PATH}",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificate[0]),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        }
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def beats(run: Path, step: int, steps: int = 1000) -> None:
    """Rank 0 says where it stands, and what the loss is."""
    file = rank_file(run / "node-0", HEARTBEATS, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"phase": "train", "step": step, "steps": steps, "monotonic": 1.0, "pid": 1, "beats": step})
    with (run / METRICS_FILE).open("a") as metrics:
        metrics.write(
            json.dumps({"step": step, "loss": 2.5}) + "\n" + json.dumps({"step": step, "val_loss": 3.0}) + "\n"
        )


def test_a_status_has_the_fields_that_trainer_knows() -> None:
    status = make_status(Beat(0, Phase.TRAIN, 250, 1000), 0.1234567, 61.7, 1704164645.0)
    assert status == {
        "trainerStatus": {
            "progressPercentage": 25,
            "estimatedRemainingSeconds": 62,
            "metrics": [
                {"name": "step", "value": "250"},
                {"name": "steps", "value": "1000"},
                {"name": "loss", "value": "0.123457"},
            ],
            "lastUpdatedTime": "2024-01-02T03:04:05Z",
        }
    }
    early = make_status(Beat(0, Phase.TRAIN, 0, 1000), None, None, 0.0)["trainerStatus"]
    assert "estimatedRemainingSeconds" not in early
    assert [metric["name"] for metric in early["metrics"]] == ["step", "steps"]


@pytest.mark.parametrize(
    ("step", "began", "left"),
    [(300, (10.0, 100), 70.0), (100, (10.0, 100), None), (300, None, None), (1000, (10.0, 100), 0.0)],
)
def test_the_time_left_follows_the_pace_since_the_first_step(
    step: int, began: tuple[float, int] | None, left: float | None
) -> None:
    assert seconds_left(Beat(0, Phase.TRAIN, step, 1000), began, 30.0) == left


def test_the_loss_is_the_newest_that_makes_sense(tmp_path: Path) -> None:
    assert newest_numbers(tmp_path) == {}
    (tmp_path / METRICS_FILE).write_text('{"loss": 1.5}\n{"loss": NaN}\n{"val_loss": 2}\n[1]\n{"lo')
    assert newest_numbers(tmp_path)["loss"] == 1.5


def test_progress_is_posted_while_it_trains_and_at_the_end_with_the_token_of_the_moment(
    trainer: Trainer, tmp_path: Path
) -> None:
    said: list[str] = []
    beats(tmp_path, 10)
    with TrainJobStatus(trainer.environ, tmp_path, tmp_path / "node-0", said.append, every=0.1):
        wait_until(lambda: trainer.posts, "the first message")
        Path(trainer.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).write_text("second")
        beats(tmp_path, 1000)
    assert not said
    (path, token, first), (_, renewed, last) = trainer.posts[0], trainer.posts[-1]
    assert (path, token, renewed) == (PATH, "Bearer first", "Bearer second")
    assert first["trainerStatus"]["progressPercentage"] == 1
    assert last["trainerStatus"]["progressPercentage"] == 100
    assert {"name": "loss", "value": "2.5"} in last["trainerStatus"]["metrics"]


@pytest.mark.parametrize(
    "change",
    [
        {"KUBEFLOW_TRAINER_SERVER_URL": "https://localhost:1/x"},
        {"KUBEFLOW_TRAINER_SERVER_URL": "http://localhost/x"},
        {"KUBEFLOW_TRAINER_SERVER_TOKEN": "/nowhere/token"},
        {"KUBEFLOW_TRAINER_SERVER_CA_CERT": "/etc/hostname"},
        {},
    ],
    ids=["nobody listens", "no TLS", "no token", "another authority", "refused"],
)
def test_what_cannot_be_told_is_said_once_and_nothing_is_raised(
    trainer: Trainer, tmp_path: Path, change: dict[str, str]
) -> None:
    trainer.answer = 200 if change else 403
    said: list[str] = []
    beats(tmp_path, 10)
    with TrainJobStatus({**trainer.environ, **change}, tmp_path, tmp_path / "node-0", said.append, every=0.02):
        wait_until(lambda: said, "the complaint")
        beats(tmp_path, 1000)  # so that there is more to tell at the end, too
    [line] = said
    assert line.startswith("Trainer cannot be told how far the training is, which goes on: ")
    assert "first" not in line, "the token"


def test_a_server_of_another_authority_gets_no_token(trainer: Trainer) -> None:
    system = {**trainer.environ, "KUBEFLOW_TRAINER_SERVER_CA_CERT": ssl.get_default_verify_paths().cafile or ""}
    if not Path(system["KUBEFLOW_TRAINER_SERVER_CA_CERT"]).is_file():
        pytest.skip("this machine trusts nobody")
    with pytest.raises(ssl.SSLCertVerificationError):
        post(system, {})
    assert not trainer.posts


@pytest.mark.parametrize(
    ("words", "environ", "asked"),
    [
        (("linear",), {"KUBEFLOW_TRAINER_SERVER_URL": "https://t/x"}, True),
        (("linear",), {}, False),
        (("-m", "json.tool"), {"KUBEFLOW_TRAINER_SERVER_URL": "https://t/x"}, False),  # it may tell something itself
        (
            ("linear",),
            {"KUBEFLOW_TRAINER_SERVER_URL": "https://t/x", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a"},
            False,
        ),
    ],
    ids=["asked", "not asked", "a script", "node 1"],
)
def test_only_rank_0_of_a_workload_of_ours_tells_and_only_where_it_is_asked(
    tmp_path: Path, words: tuple[str, ...], environ: dict[str, str], asked: bool
) -> None:
    job = Job(plan_for(words, environ), make_sources(environ), make_devices(), environ, None, make_host())
    reports = progress_elsewhere(job, Run(tmp_path, "none", 1), tmp_path)
    assert isinstance(reports, train_job_status.TrainJobStatus) == asked
