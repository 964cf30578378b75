"""Files from the Hub: fetched once, compared with their checksums, and what is said where that fails."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer
from huggingface_hub import constants

from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.causes import HubError
from slipway.train.hub.fetch import fetch

FILES = {"config.json": b'{"layers": 2}', "model.safetensors": bytes(range(256)) * 400, "sub/notes.txt": b"notes\n"}
PRIVATE = {"token": "hf_right"}


def kept(hub: HubServer) -> list[str]:
    """Everything under the cache that is neither a folder nor an empty lock."""
    home = Path(constants.HF_HUB_CACHE)
    return [path.name for path in home.rglob("*") if path.is_file() and path.stat().st_size]


def loaded(hub: HubServer) -> list[str]:
    """The files that were asked for, without what only asks about them."""
    return [
        request
        for request in hub.requests
        if request.startswith("GET") and ("/resolve/" in request or "/cdn/" in request)
    ]


@pytest.mark.core
def test_a_repository_is_fetched_once_at_the_commit_that_is_told(hub: HubServer) -> None:
    commit = hub.add("acme/tiny", FILES)
    said: list[str] = []
    ticks: list[None] = []
    folder = fetch("acme/tiny", say=said.append, tick=lambda: ticks.append(None))
    assert folder.name == commit
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")} == FILES
    assert said == [f"acme/tiny at its main revision is commit {commit}"]
    assert ticks
    before = len(loaded(hub))
    assert (before, fetch("acme/tiny"), len(loaded(hub))) == (3, folder, 3)


@pytest.mark.parametrize(("source", "revision"), [("@dev", None), ("", "dev"), ("@v1", None), ("@{commit}", None)])
def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: HubServer, source: str, revision: str | None) -> None:
    commit = hub.add("acme/tiny", FILES, branch="dev")
    hub.repos["model", "acme/tiny"].tags["v1"] = commit
    hub.add("acme/tiny", {"config.json": b"newer"})
    assert fetch("acme/tiny" + source.format(commit=commit), revision=revision).name == commit


def test_only_files_with_the_names_asked_for_are_fetched_of_a_data_set(hub: HubServer) -> None:
    hub.add("acme/text", {**FILES, "data/train.parquet": b"rows"}, kind="dataset")
    folder = fetch("acme/text", kind="dataset", include=("*.parquet", "sub/"))
    assert sorted(path.name for path in folder.rglob("*.*")) == ["notes.txt", "train.parquet"]


@pytest.mark.parametrize(("file", "part"), [("model.safetensors", "/cdn/"), ("config.json", "/resolve/")])
def test_a_damaged_file_of_the_right_length_is_removed_and_told(hub: HubServer, file: str, part: str) -> None:
    hub.add("acme/tiny", {file: FILES[file]})
    hub.fail(part, corrupt=True, left=1, methods=("GET",))
    with pytest.raises(HubError, match=rf"^{file} of acme/tiny arrived damaged"):
        fetch("acme/tiny")
    assert not any("blobs" in str(path) for path in Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file())
    assert (fetch("acme/tiny") / file).read_bytes() == FILES[file]


def test_a_file_that_went_bad_in_the_cache_is_found_and_fetched_anew(hub: HubServer) -> None:
    hub.add("acme/tiny", FILES)
    content = (fetch("acme/tiny") / "model.safetensors").resolve()
    content.write_bytes(b"!" + FILES["model.safetensors"][1:])
    os.utime(content, (0, 0))
    with pytest.raises(HubError, match="damaged"):
        fetch("acme/tiny")
    assert (fetch("acme/tiny") / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_download_goes_on_where_the_connection_was_dropped(hub: HubServer) -> None:
    hub.add("acme/tiny", FILES)
    hub.fail("/cdn/", drop=30_000, left=2)
    assert (fetch("acme/tiny") / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert len([request for request in hub.requests if "/cdn/" in request]) == 3


def test_nothing_half_written_stays_of_a_download_that_fails(hub: HubServer) -> None:
    commit = hub.add("acme/tiny", {"model.safetensors": FILES["model.safetensors"]})
    hub.fail("/cdn/", drop=0)
    with pytest.raises(HubError, match=r"dropped.*nothing of the file was kept"):
        fetch("acme/tiny")
    assert sorted(kept(hub)) == sorted(["main", f"{commit}.json", "CACHEDIR.TAG"])
    hub.faults.clear()
    assert (fetch("acme/tiny") / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_two_nodes_share_a_cache_whose_locks_do_nothing(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.WeakFileLock", lambda path: nullcontext())
    hub.add("acme/tiny", FILES)
    with ThreadPoolExecutor(4) as nodes:
        folders = list(nodes.map(lambda _: fetch("acme/tiny"), range(4)))
    assert {(folder / "model.safetensors").read_bytes() for folder in folders} == {FILES["model.safetensors"]}
    assert not [name for name in kept(hub) if name.endswith(".incomplete")]


def refuse_names(*_: object, **__: object) -> Any:
    raise socket.gaierror(-2, "Name or service not known")


MISTAKES = {
    "a name that is like another": ("acme/tny", {}, "no model acme/tny.*Did you mean acme/tiny"),
    "a data set": ("acme/text", {}, "There is a data set of that name: --kind dataset"),
    "no name": ("acme tiny", {}, "'acme tiny' is no name of the Hub's"),
    "no such revision": ("acme/tiny@deb", {}, "no revision deb. Did you mean dev[?] There are main, dev, v1, and each"),
    "two revisions": ("acme/tiny@dev", {"revision": "v1"}, "type one of them"),
    "no such file": (
        "acme/tiny",
        {"include": ["*.gguf"]},
        "no file [*].gguf. It holds config.json, model.safetensors, ",
    ),
    "not shown to everyone": ("acme/private", {}, "no model acme/private, or does not show it.*set HF_TOKEN"),
    "terms to accept": ("acme/gated", {}, "accept its terms: do so at http.*/acme/gated, and set HF_TOKEN"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_what_to_type(hub: HubServer, mistake: str) -> None:
    hub.add("acme/tiny", FILES)
    hub.repos["model", "acme/tiny"].branches["dev"] = hub.repos["model", "acme/tiny"].branches["main"]
    hub.repos["model", "acme/tiny"].tags["v1"] = hub.repos["model", "acme/tiny"].branches["main"]
    hub.add("acme/text", FILES, kind="dataset")
    hub.add("acme/private", FILES, **PRIVATE)
    hub.add("acme/gated", FILES, gated=True, **PRIVATE)
    repo, how, told = MISTAKES[mistake]
    with pytest.raises(ConfigurationError, match=told) as caught:
        fetch(repo, **how)
    assert "\n" not in str(caught.value)  # outcome files hold one line


LIMIT = {"status": 429, "headers": {"Retry-After": "7"}}
ANSWERS: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "too many questions": ("/api/models/acme", LIMIT, HubError, "limits how often.*in 7 s.*HF_TOKEN"),
    "too many downloads": ("/resolve/", LIMIT, HubError, "limits how often.*in 7 s"),
    "out of order": ("/api/models/acme", {"status": 503}, HubError, "answers 503"),
    "a file out of order": ("/resolve/", {"status": 503}, HubError, "answers 503"),
    "forbidden": ("/resolve/", {"status": 403}, ConfigurationError, "refuses.*403.*token may be wrong"),
    "a wrong token": (
        "/api/models/acme",
        {"status": 401, "headers": {"X-Error-Message": "Invalid credentials in Authorization header"}},
        ConfigurationError,
        "refuses.*401.*/settings/tokens",
    ),
    "a page of the house's own": (
        "/api/models/acme",
        {"status": 200, "body": b"<html>"},
        ConfigurationError,
        "HF_ENDPOINT",
    ),
    "a proxy that changes headers": ("/resolve/", {"status": 200}, ConfigurationError, "HF_ENDPOINT"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_real_cause_of_a_refusal_is_told(hub: HubServer, answer: str) -> None:
    part, how, kind, told = ANSWERS[answer]
    hub.add("acme/tiny", FILES)
    hub.fail(part, **how)
    with pytest.raises(kind, match=told) as caught:
        fetch("acme/tiny")
    assert "\n" not in str(caught.value)


def test_a_name_that_nobody_knows_is_told(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", refuse_names)
    with pytest.raises(
        HubError, match=r"cannot be resolved here .Name or service not known.*slipway data fetch acme/tiny"
    ):
        fetch("acme/tiny")


def test_a_hub_that_is_not_there_is_told(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"http://127.0.0.1:9, cannot be reached .*refused"):
        fetch("acme/tiny")


@pytest.mark.parametrize("address", ["huggingface.co", "ftp://127.0.0.1", "http://127.0.0.1:none"])
def test_an_address_that_is_none_is_the_users_mistake(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with pytest.raises(ConfigurationError, match=f"HF_ENDPOINT '{address}' is no address such as https://"):
        fetch("acme/tiny")


def test_a_hub_that_does_not_answer_is_told(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.train.hub.fetch.PATIENCE", 0.1)
    hub.fail("/api/models/acme/tiny", silent=True)
    with pytest.raises(HubError, match="does not answer in time"):
        fetch("acme/tiny")


def test_a_full_disk_stays_one(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    hub.add("acme/tiny", FILES)
    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(OSError, match="No space left") as caught:
        fetch("acme/tiny")
    assert caught.value.errno == errno.ENOSPC


def go_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()


def test_offline_the_cache_is_used_and_nobody_is_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.add("acme/tiny", FILES)
    folder = fetch("acme/tiny")
    go_offline(hub, monkeypatch)
    assert [fetch("acme/tiny"), fetch(f"acme/tiny@{commit}", include=["*.json"])] == [folder, folder]
    assert hub.requests == []


@pytest.mark.parametrize(
    ("before", "how", "typed"),
    [
        ([], {"kind": "dataset", "include": ["*.txt"]}, "slipway data fetch acme/tiny --kind dataset --include '[*].txt'$"),
        (["*.json"], {}, "slipway data fetch acme/tiny$"),
        (["*.json"], {"revision": "dev"}, "slipway data fetch acme/tiny --revision dev$"),
    ],
)  # fmt: skip
def test_offline_what_is_missing_is_told(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, before: list[str], how: dict[str, Any], typed: str
) -> None:
    hub.add("acme/tiny", FILES)
    if before:
        fetch("acme/tiny", include=before)
    go_offline(hub, monkeypatch)
    with pytest.raises(ConfigurationError, match=f"HF_HUB_OFFLINE is set.*{typed}"):
        fetch("acme/tiny", **how)
    assert hub.requests == []


def test_offline_a_name_that_none_can_have_is_told(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    go_offline(hub, monkeypatch)
    with pytest.raises(ConfigurationError, match="'acme/ti--ny' is no name of the Hub's: type owner/name"):
        fetch("acme/ti--ny")


def test_what_is_in_the_cache_does_where_the_hub_is_out_of_order(hub: HubServer) -> None:
    commit = hub.add("acme/tiny", FILES)
    folder = fetch("acme/tiny")
    hub.fail("/api/", status=503)
    said: list[str] = []
    assert fetch("acme/tiny", say=said.append) == folder
    assert "answers 503" in said[0]
    assert f"Going on with commit {commit}, which is in the cache." in said[0]


@pytest.mark.parametrize("place", ["HF_TOKEN", "HF_TOKEN_PATH"])
def test_a_token_is_taken_from_its_variable_or_its_file(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    hub.add("acme/private", FILES, **PRIVATE)
    if place == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", "hf_right")
    else:
        Path(constants.HF_TOKEN_PATH).parent.mkdir()
        Path(constants.HF_TOKEN_PATH).write_text("hf_right\n")
    fetch("acme/private")
    assert "hf_right" in hub.tokens
    # The library sends none to where files lie elsewhere.
    assert {token for request, token in zip(hub.requests, hub.tokens, strict=True) if "/cdn/" in request} == {None}


def test_a_token_that_is_none_is_refused_and_not_shown(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret")
    with pytest.raises(ConfigurationError, match="odd characters") as caught:
        fetch("acme/tiny")
    assert "cret" not in str(caught.value)


def test_progress_is_told_in_lines_where_there_is_no_terminal(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.train.hub.fetch.LINES", -1.0)
    hub.add("acme/tiny", FILES)
    said: list[str] = []
    fetch("acme/tiny", say=said.append)
    assert said[-1] == "acme/tiny: 0 of 0 MB"


Fetch = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Fetch:
    """Type `slipway data fetch …`: exit code and output."""
    from slipway.cli.cli import main

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["slipway", "data", "fetch", *words])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capfd.readouterr()
        return int(end.value.code or 0), shown.out + shown.err

    return run


def test_the_command_says_what_it_fetched_and_how_to_use_it(hub: HubServer, typed: Fetch) -> None:
    commit = hub.add("acme/tiny", FILES)
    code, shown = typed("acme/tiny", "--include", "*.json", "--include", "*.safetensors")
    assert code == 0
    assert f"acme/tiny at its main revision is commit {commit}\n" in shown
    assert "0.102 MB  model.safetensors\n" in shown
    assert "notes.txt" not in shown
    assert f"2 files, 0.102 MB, in {constants.HF_HUB_CACHE}/models--acme--tiny/snapshots/{commit}\n" in shown
    assert f"use it: slipway finetune --model acme/tiny@{commit}\n" in shown


@pytest.mark.parametrize(
    ("words", "fault", "code"),
    [(["acme/none"], None, 78), (["acme/tiny"], 503, 1), (["acme/gated"], None, 78), (["acme/tiny"], 429, 1)],
)
def test_the_command_ends_with_a_code_and_without_the_token(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, typed: Fetch, words: list[str], fault: int | None, code: int
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add("acme/tiny", FILES)
    hub.add("acme/gated", FILES, gated=True, **PRIVATE)
    if fault:
        hub.fail("/resolve/", status=fault)
    got, shown = typed(*words)
    assert got == code, shown
    assert "slipway: " in shown
    assert "Traceback" not in shown
    assert "hf_secret" in hub.tokens
    assert "hf_secret" not in shown
