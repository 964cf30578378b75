"""`slipway export --push` against a Hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hub_server import HubServer
from huggingface_hub import constants
from training_jobs import Run

from slipway.cli import cli
from slipway.protocol.mistake import ConfigurationError
from slipway.train.export import export_run, push_folder
from slipway.train.hub.causes import HubError

Start = Callable[..., Run]

TOKEN = "hf_secret0123456789"
GPT = (
    "--layers", 1, "--heads", 1, "--embed", 16, "--context", 16, "--batch-size", 4, "--steps", 2, "--eval-samples", 5,
    "--sample-tokens", 0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def model(train: Start, tmp_path: Path) -> Path:
    """An export."""
    export_run(train("gpt", *GPT).folder, tmp_path / "model")
    return tmp_path / "model"


def test_the_command_line_exports_and_uploads_without_showing_the_token(
    hub: HubServer, train: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    run = train("gpt", *GPT).folder
    done = CliRunner().invoke(cli.slipway, ["export", str(run), str(folder), "--push", "ann/tiny"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [f"exported {run} to {folder}", f"pushed to {hub.url}/ann/tiny"]
    assert TOKEN not in done.output

    repo = hub.repos["model", "ann/tiny"]
    uploaded = repo.commits[repo.branches["main"]]
    assert uploaded == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert b'from_pretrained("ann/tiny")' in uploaded["README.md"]
    given = [token for request, token in zip(hub.requests, hub.tokens, strict=True) if request.startswith("POST")]
    assert set(given) == {TOKEN}


@pytest.mark.parametrize("public", [False, True])
def test_a_repository_is_private_unless_it_is_meant_to_be_public(hub: HubServer, model: Path, public: bool) -> None:
    push_folder(model, "ann/tiny", public, "first")
    assert json.loads(hub.bodies[0])["visibility"] == ("public" if public else "private")


def test_an_export_is_pushed_again_as_its_owner_left_it(hub: HubServer, model: Path) -> None:
    push_folder(model, "ann/tiny", False, "first")
    (model / "README.md").write_text("---\nlicense: mit\n---\n")
    push_folder(model, "ann/tiny", False, "second")
    repo = hub.repos["model", "ann/tiny"]
    assert repo.commits[repo.branches["main"]]["README.md"] == b"---\nlicense: mit\n---\n"


@pytest.mark.parametrize(
    ("path", "status", "kind", "says"),
    [
        ("/api/repos/create", 401, ConfigurationError, "does not let the owner of the token in use write to ann/tiny"),
        ("/commit/", 403, ConfigurationError, "Type a name of your own account's, and use a token that may write"),
        ("/api/repos/create", 500, HubError, "answers 500 to a request for ann/tiny; try again later"),
    ],
)
def test_a_refused_upload_is_told_with_what_to_do(
    hub: HubServer, model: Path, path: str, status: int, kind: type[Exception], says: str
) -> None:
    hub.fail(path, status=status)
    with pytest.raises(kind, match=says) as told:
        push_folder(model, "ann/tiny", False, "first")
    assert TOKEN not in str(told.value)


def test_a_hub_that_is_not_there_is_told(hub: HubServer, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"http://127\.0\.0\.1:9, cannot be reached"):
        push_folder(model, "ann/tiny", False, "first")


@pytest.mark.parametrize(
    ("repo", "constant", "value", "says"),
    [
        ("ann/tiny", "HF_TOKEN_PATH", "no such file", "set HF_TOKEN to a token that may write, or HF_TOKEN_PATH"),
        ("ann/tiny", "HF_HUB_OFFLINE", True, "HF_HUB_OFFLINE is set; unset it to upload"),
        ("ann/tiny/small", "", None, "'ann/tiny/small' is no name of the Hub's"),
        ("no name!", "", None, "'no name!' is no name of the Hub's"),
    ],
)
def test_a_mistake_is_told_before_the_hub_is_asked(
    hub: HubServer, model: Path, monkeypatch: pytest.MonkeyPatch, repo: str, constant: str, value: object, says: str
) -> None:
    if constant:
        monkeypatch.setattr(constants, constant, value)
    if constant == "HF_TOKEN_PATH":
        monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigurationError, match=says):
        push_folder(model, repo, False, "first")
    assert hub.requests == []
