"""Messages to a chat: what they say, how often, and that nothing about them touches the job."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Slipway, make_devices, make_host, make_sources, plan_for
from waiting import PATIENCE, wait_until

from slipway.launch.companions import notices
from slipway.launch.companions.notices import Notices, open_notices
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.cause import said
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.protocol.files import REPLICAS_FILE, write_json
from slipway.protocol.outcomes import Word
from slipway.protocol.redact import make_redactor

STOPS: Any = None  # notices do not need them
SECRET = "T00/B00/hunter2hunter2"


@dataclass
class Chat:
    """A server that takes messages after it failed so often."""

    url: str = ""
    failures: int = 0
    tries: int = 0
    posts: list[dict[str, Any]] = field(default_factory=list)
    redirect: tuple[int, str] = (0, "")  # the status, and where to, of what is not below /moved


@pytest.fixture
def chat() -> Iterator[Chat]:
    made = Chat()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.tries += 1
            if made.redirect[0] and not self.path.startswith("/moved"):
                self.send_response(made.redirect[0])
                self.send_header("Location", made.redirect[1] or "/moved")
                self.end_headers()
                return
            failed = made.tries <= made.failures
            if not failed:
                made.posts.append(content)
            self.send_response(500 if failed else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}/services/{SECRET}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(notices, "TRIES", (0.0, 0.01, 0.01))
    for seconds in ("TIMEOUT", "LAST_SECONDS"):  # a busy machine is no failure of the server's
        monkeypatch.setattr(notices, seconds, PATIENCE)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "gpt-1").mkdir()
    return Run(tmp_path / "gpt-1", "none", 2)


@pytest.fixture
def start(chat: Chat) -> Callable[..., Notices]:
    def make(said: list[str] | None = None, pause: float = 60.0, secrets: tuple[str, ...] = ()) -> Notices:
        redactor = make_redactor([*secrets, chat.url])
        return Notices(chat.url, {"workload": "gpt"}, redactor, (said if said is not None else []).append, pause)

    return make


def verdict(word: Word, evidence: str = "") -> Verdict:
    return judge([Outcome(1, "gpu08", word, 0.0, cause=said(evidence))])


def test_a_message_has_a_text_for_people_and_fields_for_programs(chat: Chat, start: Any, run: Run) -> None:
    with start() as told:
        told.end(run, verdict(Word.FAILED, "ValueError: bad batch"))
    [post] = chat.posts
    assert post["text"] == "gpt-1: the workload failed: node 1 (gpu08): ValueError: bad batch"
    assert {name: post[name] for name in ("event", "workload", "attempt", "outcome", "exit_code", "snapshot")} == {
        "event": "end", "workload": "gpt", "attempt": 2, "outcome": "failed", "exit_code": 1, "snapshot": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "event"), [(Word.FAILED, "restart"), (Word.PEER, "restart"), (Word.LOST, "lost node")]
)
def test_a_restart_says_why(chat: Chat, start: Any, run: Run, word: Word, event: str) -> None:
    with start() as told:
        told.restart(run, verdict(word, "it was frozen"))
    assert chat.posts[0]["event"] == event
    assert "because attempt 2 ended" in chat.posts[0]["text"]
    assert "it was frozen" in chat.posts[0]["text"]


def test_replicas_that_differ_are_told_of_once_and_older_ones_never(
    chat: Chat, start: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "EVERY", 0.0)
    rows = [{"time": time.time() - 60, "step": 3, "nodes": ["node 0 (n0)"], "text": "of before"}]
    write_json(run.path / REPLICAS_FILE, {"differences": rows})
    with start(pause=0.0) as told:
        told.poll(run)
        rows.append({"time": 7.0, "step": 6, "nodes": ["node 1 (n1)"], "text": "rank 1 differs from the others in w"})
        write_json(run.path / REPLICAS_FILE, {"differences": rows})
        told.poll(run)
        told.poll(run)
        wait_until(lambda: chat.posts, "the first message")  # else all is told in one
        rows.append({"time": time.time(), "step": 9, "nodes": ["node 1 (n1)"], "text": "again", "kind": "arithmetic"})
        write_json(run.path / REPLICAS_FILE, {"differences": rows})
        told.end(run, verdict(Word.FAILED, "bad"))
    texts = "\n".join(post["text"] for post in chat.posts)
    assert "of before" not in texts
    assert (
        texts.count("the replicas differed at step 6, 1970-01-01 00:00:07 UTC, node 1 (n1): rank 1 differs from") == 1
    )
    assert texts.index("node 1 (n1): again") < texts.index("the workload failed"), "what came last is told, too"
    assert chat.posts[0]["event"] == "drift"
    assert "a rank computed wrongly at step 9" in texts


def test_a_server_that_fails_twice_gets_it_at_the_third_time(chat: Chat, start: Any, run: Run) -> None:
    chat.failures, said = 2, []
    with start(said) as told:
        told.hang(run, "hang: behind: rank 1")
    assert [post["text"] for post in chat.posts] == ["gpt-1: hang: behind: rank 1"]
    assert (chat.tries, said) == (3, [])


def test_one_that_fails_for_good_is_told_of_once_and_without_the_address(chat: Chat, start: Any, run: Run) -> None:
    chat.failures, said = 100, []
    with start(said, pause=0.0) as told:
        told.hang(run, "one")
        told.hang(run, "two")
    assert chat.posts == []
    [line] = said
    assert line.startswith("warning: a message to SLIPWAY_NOTIFY could not be delivered; the job continues:  HTTPError")
    assert SECRET not in line


def test_nobody_there_is_no_harm(start: Any, run: Run, chat: Chat) -> None:
    said: list[str] = []
    told = Notices("http://127.0.0.1:9/x", {}, str, said.append)
    with told:
        told.hang(run, "one")
    assert "URLError" in said[0]


def test_what_comes_within_the_minute_is_told_together_and_the_end_does_not_wait(
    chat: Chat, start: Any, run: Run
) -> None:
    with start() as told:
        waits = waits_of(told)
        told.hang(run, "one")
        wait_until(lambda: chat.posts, "the first message")
        told.hang(run, "two")
        wait_until(lambda: len(waits) == 2, "the second message to be held back")
        told.restart(run, verdict(Word.PEER, "three"))
        assert len(chat.posts) == 1
        told.end(run, verdict(Word.FINISHED))
    first, second = chat.posts
    assert (first["event"], second["event"]) == ("hang", "end")
    lines = second["text"].splitlines()
    assert (len(lines), lines[0], lines[-1]) == (3, "gpt-1: two", "gpt-1: finished on 1 node")


def waits_of(told: Notices, *, passes: bool = False) -> list[float]:
    """The seconds that it waits before each message, from now on. `passes`: they are over at once."""
    waits: list[float] = []
    wait = told._over.wait

    def note(seconds: float) -> bool:
        waits.append(seconds)
        return wait(0.0 if passes else seconds)

    told._over.wait = note  # type: ignore[method-assign,assignment]
    return waits


def test_after_the_minute_the_next_one_goes(chat: Chat, start: Any, run: Run) -> None:
    with start() as told:
        waits = waits_of(told, passes=True)
        for number, text in enumerate(("one", "two"), start=1):
            told.hang(run, text)
            wait_until(lambda count=number: len(chat.posts) == count, f"message {number}")
    assert waits[0] == 0
    assert 0 < waits[1] <= 60


def test_secrets_are_taken_out(chat: Chat, start: Any, run: Run) -> None:
    with start(secrets=("abc123secret",)) as told:
        told.hang(run, "hf_abcdefGHIJKL0123 and abc123secret and --api-key xyzxyzxyz")
    text = chat.posts[0]["text"]
    assert text == "gpt-1: *** and *** and --api-key ***"


def job(environ: dict[str, str]) -> Job:
    return Job(plan_for(environ=environ), make_sources(environ), make_devices(), environ, None, make_host())


@pytest.mark.parametrize(
    ("environ", "sends"),
    [
        ({"SLIPWAY_NOTIFY": "https://chat.example/x"}, True),
        ({"SLIPWAY_NOTIFY": "https://chat.example/x", "NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "n0"}, True),
        ({"SLIPWAY_NOTIFY": "https://chat.example/x", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n0"}, False),
    ],
)
def test_node_0_sends_where_somebody_asked(environ: dict[str, str], sends: bool) -> None:
    assert open_notices(job(environ), STOPS, print)._leads == sends


def test_the_address_stays_out_of_plans_and_of_the_workers(slipway: Slipway) -> None:
    url = f"https://chat.example/{SECRET}"
    for words in (
        ("plan", "linear"),
        ("plan", "--json", "linear"),
        ("render", "slurm", "linear"),
        ("render", "k8s", "linear"),
    ):
        assert SECRET not in (answer := slipway(*words, SLIPWAY_NOTIFY=url)).out + answer.err
        assert answer.code == 0
    environ = {"SLIPWAY_NOTIFY": url}
    assert "SLIPWAY_NOTIFY" not in plan_for(environ=environ).environment(environ)


@pytest.mark.parametrize("url", ["chat.example/hunter2", "ftp://chat.example/hunter2", "file:///hunter2"])
def test_an_address_that_is_none_is_refused_without_showing_it(slipway: Slipway, url: str) -> None:
    answer = slipway("plan", "linear", SLIPWAY_NOTIFY=url)
    assert answer.code == 78
    assert "SLIPWAY_NOTIFY=*** (from the environment): an address that begins with https:// or http://" in answer.err
    assert "hunter2" not in answer.err


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_gets_the_message_as_well(chat: Chat, start: Any, run: Run, status: int) -> None:
    chat.redirect, said = (status, ""), list[str]()
    with start(said) as told:
        told.end(run, verdict(Word.FAILED, "ValueError: bad batch"))
    assert [post["event"] for post in chat.posts] == ["end"]
    assert said == []


@pytest.mark.parametrize("where", ["ftp://127.0.0.1/moved", "file:///etc/passwd"])
def test_a_redirect_to_something_else_than_a_web_address_is_not_followed(
    chat: Chat, start: Any, run: Run, where: str
) -> None:
    chat.redirect, said = (301, where), list[str]()
    with start(said) as told:
        told.end(run, verdict(Word.FAILED, "ValueError: bad batch"))
    assert chat.posts == []
    assert "could not be delivered" in said[0]
