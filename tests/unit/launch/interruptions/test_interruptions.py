"""Interruption notices: which cloud is asked, what it answers, and what the launcher makes of that."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_clouds import CLOUDS, Cloud, FakeAws, FakeAzure, FakeGcp, serve
from stand_ins import Slipway, make_sources

from slipway.check.machine import look_at_notices
from slipway.launch.attempt.stops import LEAVE, Deadline, Stops
from slipway.launch.interruptions.metadata import SERVICES, Answer, Fetch, address_of, fetch_from
from slipway.launch.interruptions.notice import (
    Notice,
    read_aws_action,
    read_azure_events,
    read_gcp_maintenance,
    read_gcp_preempted,
)
from slipway.launch.interruptions.watch import LONGEST, PATIENCE, NoticeWatch
from slipway.launch.resolve.host import Host, read_dmi
from slipway.launch.resolve.spot import AZURE_TAG, Watched, choose_watched, name_cloud
from slipway.process.machine import Clock
from slipway.protocol.errors import LaunchError

UUID = "ec2e1916-9099-7caf-fd21-012345abcdef"
# What DMI says of machines, and which cloud that is.
MACHINES: tuple[tuple[str, dict[str, str], str], ...] = (
    ("EC2, Nitro", {"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"}, "aws"),
    ("EC2, bare metal", {"sys_vendor": "Amazon EC2", "product_name": "i3.metal", "product_uuid": "f2e1"}, "aws"),
    ("EC2, Xen, as root", {"sys_vendor": "Xen", "product_uuid": UUID.upper(), "bios_version": "4.11.amazon"}, "aws"),
    ("EC2, Xen", {"sys_vendor": "Xen", "hypervisor_uuid": UUID, "bios_version": "4.2.amazon"}, "aws"),
    ("a UUID that begins so by chance", {"sys_vendor": "QEMU", "product_uuid": UUID, "bios_version": "1.16"}, "off"),
    ("another Xen", {"sys_vendor": "Xen", "hypervisor_uuid": UUID, "bios_version": "4.17.2"}, "off"),
    ("Amazon's own desktop", {"sys_vendor": "Amazon", "product_name": "WorkSpaces"}, "off"),
    ("Compute Engine", {"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
    ("an older one", {"sys_vendor": "Google", "product_name": "Google"}, "gcp"),
    ("a Chromebook", {"sys_vendor": "Google", "product_name": "Eve"}, "off"),
    ("Azure", {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_TAG}, "azure"),
    ("any Hyper-V", {"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, "off"),
    ("WSL", {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084"}, "off"),
    ("KVM", {"sys_vendor": "QEMU", "product_name": "Standard PC (Q35 + ICH9, 2009)"}, "off"),
    ("a server", {"sys_vendor": "NVIDIA", "product_name": "DGXH100"}, "off"),
    ("a sandbox", {}, "off"),
)


@pytest.mark.parametrize(("dmi", "cloud"), [row[1:] for row in MACHINES], ids=[row[0] for row in MACHINES])
def test_only_what_dmi_says_for_certain_names_a_cloud(dmi: dict[str, str], cloud: str) -> None:
    assert name_cloud(dmi).cloud == cloud


def test_dmi_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_text("Amazon EC2\n")
    (folder / "product_name").write_bytes(b"\xff\x1b[2J\n")
    (folder / "product_uuid").mkdir()  # as unreadable as root's file
    (folder / "bios_version").write_text("\n")
    assert read_dmi(tmp_path) == {"sys_vendor": "Amazon EC2", "product_name": "\ufffd"}
    assert read_dmi(tmp_path / "nowhere") == {}


EC2 = dict(MACHINES[0][1])


@pytest.mark.parametrize(
    ("environ", "dmi", "watched"),
    [
        ({}, EC2, Watched("aws", "auto: sys_vendor is Amazon EC2")),
        ({"SLIPWAY_SPOT": "auto"}, {}, Watched("off", "auto: no DMI here")),
        ({}, {"sys_vendor": "QEMU"}, Watched("off", "auto: DMI names no cloud: sys_vendor is QEMU")),
        ({"SLIPWAY_SPOT": "off"}, EC2, Watched("off", "environment (SLIPWAY_SPOT)")),
        ({"SLIPWAY_SPOT": "gcp"}, EC2, Watched("gcp", "environment (SLIPWAY_SPOT)")),
        ({"AWS_EC2_METADATA_DISABLED": "True"}, EC2, Watched("off", "auto: AWS_EC2_METADATA_DISABLED is true")),
        ({"SLIPWAY_SPOT": "aws", "AWS_EC2_METADATA_DISABLED": "true"}, {}, Watched("aws", "environment (SLIPWAY_SPOT)")),
    ],
)  # fmt: skip
def test_the_setting_decides_and_auto_asks_dmi(environ: dict[str, str], dmi: dict[str, str], watched: Watched) -> None:
    assert choose_watched(make_sources(environ), dmi) == watched


def test_another_word_is_refused_with_those_that_are_allowed() -> None:
    with pytest.raises(LaunchError, match="off, auto, aws, gcp, azure are allowed"):
        choose_watched(make_sources({"SLIPWAY_SPOT": "amazon"}), {})


def test_a_plan_shows_what_is_watched_and_why(slipway: Slipway) -> None:
    answer = slipway("plan", "linear", SLIPWAY_SPOT="azure")
    assert answer.code == 0, answer.err
    assert any(
        line.split() == ["SLIPWAY_SPOT", "azure", "environment", "(SLIPWAY_SPOT)"] for line in answer.out.splitlines()
    )


@pytest.mark.parametrize("dmi", [dmi for _, dmi, cloud in MACHINES if cloud == "off"])
def test_nothing_is_asked_on_a_machine_that_is_in_no_cloud(
    dmi: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        pytest.fail("something was sent")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    said: list[str] = []
    with NoticeWatch(choose_watched(make_sources({}), dmi), refuse, said.append, refuse):
        pass
    rows = [*look_at_notices(make_sources({}), Host("host", 1, "host", {}, dmi=dmi), {}, refuse)]
    assert said == []
    assert [row.level for row in rows] == ["ok"]


class Play:
    """A watch on a fake cloud, driven look by look by the cloud's clock; the machine's own is so many seconds ahead."""

    def __init__(self, cloud: Cloud, ahead: float = 0.0, fetch: Fetch | None = None, approves: bool = False) -> None:
        name = next(name for name, kind in CLOUDS.items() if isinstance(cloud, kind))
        self.cloud, self.notes, self.said = cloud, [], []  # type: tuple[Cloud, list[tuple[str, float | None]], list[str]]
        self.service = SERVICES[name](fetch or cloud.fetch)
        clock = Clock(time=lambda: cloud.now + ahead)
        self.watch = NoticeWatch(
            Watched(name, "a test"),
            lambda *note: self.notes.append(note),
            self.said.append,
            lambda: self.service,
            clock,
            approves=approves,
        )

    def poll(self) -> bool:
        return self.watch.poll(self.service)

    def until(self, end: float) -> bool:
        """Look until a notice came, or the time is over."""
        while self.cloud.now < end:
            if self.poll():
                return True
            self.cloud.now += self.watch.pause(self.service)
        return False


@pytest.mark.parametrize("seed", range(200))
def test_a_notice_is_noted_once_within_seconds_whatever_the_clocks_say(seed: int) -> None:
    """200 notices, in each cloud's format: what is left is right to the second, and nothing was noted before."""
    dice = random.Random(seed)
    name = ("aws", "gcp", "azure")[seed % 3]
    cloud = CLOUDS[name]()
    began = cloud.now
    cloud.due = began + dice.choice((0.0, dice.uniform(0, 500)))
    cloud.left = {"aws": 120.0, "gcp": 30.0, "azure": dice.uniform(30, 900)}[name]
    if name == "aws":
        cloud.kind = dice.choice(("terminate", "stop", "hibernate"))
    elif name == "azure":
        cloud.kind = dice.choice(("Preempt", "Terminate", "Reboot", "Redeploy"))
    play = Play(cloud, ahead=dice.uniform(-600, 600))
    assert play.until(cloud.due + 60), f"seed {seed}"
    [(text, left)] = play.notes
    late = cloud.now - cloud.due
    assert 0 <= late <= 6, f"seed {seed}"
    assert left is not None
    assert abs(left - (cloud.left - (0 if name == "gcp" else late))) <= 1, f"seed {seed}"
    assert "interruption notice" in text
    assert "deadline 2026-" in text


@pytest.mark.parametrize("name", CLOUDS)
def test_without_a_notice_a_watch_goes_on_and_says_nothing(name: str) -> None:
    play = Play(CLOUDS[name]())
    assert not play.until(play.cloud.now + 900)
    assert (play.notes, play.said) == ([], [])
    assert 150 <= len(play.cloud.asked) <= 2500, "a few requests every five seconds, or one a second"


def test_the_first_look_at_googles_server_does_not_wait_and_later_ones_do() -> None:
    play = Play(cloud := FakeGcp())
    play.poll()
    play.poll()
    asked = [path.rpartition("/")[2] for path in cloud.asked if "preempted" in path]
    assert asked == ["preempted", "preempted?wait_for_change=true&timeout_sec=5"]


@pytest.mark.parametrize(
    ("cloud", "line"),
    [
        (FakeAws(rebalance=True), "AWS warning (rebalance recommendation): the job continues"),
        (FakeGcp(event="MIGRATE_ON_HOST_MAINTENANCE"), "Google Cloud warning (MIGRATE_ON_HOST_MAINTENANCE): the job continues"),
        (FakeAzure(due=0.0, kind="Freeze"), "Azure warning (Freeze): the job continues"),
    ],
)  # fmt: skip
def test_a_warning_is_said_once_and_stops_nothing(cloud: Cloud, line: str) -> None:
    play = Play(cloud)
    assert not play.until(cloud.now + 100)
    assert play.said == [line]
    assert play.notes == []


def test_googles_maintenance_ends_a_machine_that_cannot_migrate() -> None:
    play = Play(FakeGcp(event="TERMINATE_ON_HOST_MAINTENANCE"))
    assert play.poll()
    assert play.notes == [
        ("Google Cloud interruption notice (TERMINATE_ON_HOST_MAINTENANCE, without a deadline)", None)
    ]


def test_an_event_of_azure_that_has_started_has_no_time_left_to_name() -> None:
    play = Play(FakeAzure(due=0.0, status="Started"))
    assert play.poll()
    assert play.notes == [("Azure interruption notice (Preempt, without a deadline)", None)]


@pytest.mark.parametrize(
    ("approves", "alone", "status", "count"),
    [
        (True, True, "Scheduled", 1),
        (False, True, "Scheduled", 0),
        (True, False, "Scheduled", 0),
        (True, True, "Started", 0),
    ],
    ids=["allowed", "not allowed", "another machine would go too", "it has started"],
)
def test_an_event_of_azure_is_approved_at_the_end_if_that_is_allowed(
    approves: bool, alone: bool, status: str, count: int
) -> None:
    cloud = FakeAzure(due=0.0, status=status, alone=alone)
    with serve(cloud) as address:
        play = Play(cloud, fetch=fetch_from(address), approves=approves)
        assert play.poll()
        assert cloud.bodies == [], "nothing is approved before the node has left"
        play.watch.__exit__()
    assert cloud.bodies == ['{"StartRequests": [{"EventId": "602d9444-d2cd-49c7-8624-000000000099"}]}'] * count
    assert ["is approved" in line for line in play.said] == [True] * count


def test_an_approval_that_fails_is_reported() -> None:
    cloud = FakeAzure(due=0.0, alone=True)

    def fetch(method: str, path: str, headers: Any, body: str = "") -> Answer:
        return Answer(500, "") if method == "POST" else cloud.fetch(method, path, headers, body)

    play = Play(cloud, fetch=fetch, approves=True)
    assert play.poll()
    play.watch.__exit__()
    assert "is not approved, so the machine stays until its deadline: HTTP status 500" in play.said[0]


@pytest.mark.parametrize("cloud", [FakeAws(due=0.0), FakeGcp(due=0.0)])
def test_other_clouds_have_nothing_to_approve(cloud: Cloud) -> None:
    play = Play(cloud, approves=True)
    assert play.poll()
    play.watch.__exit__()
    assert cloud.bodies == play.said == []


@pytest.mark.parametrize("status", ["Completed", "Canceled", ""])
def test_an_event_of_azure_that_is_over_is_none(status: str) -> None:
    assert not Play(FakeAzure(due=0.0, status=status)).poll()


ODD = (
    "",
    "null",
    "[]",
    "7",
    "<html>",
    "{",
    "{}",
    "[" * 100_000,
    '{"action": 7}',
    '{"action": ""}',
    '{"Events": {}}',
    "true",
)


@pytest.mark.parametrize("text", ODD)
def test_what_is_no_notice_is_never_taken_for_one(text: str) -> None:
    """A portal that answers anything, a body that was cut off."""
    for read in (read_aws_action, lambda text: read_azure_events(text, "vm"), lambda text: read_gcp_preempted(text, 0)):
        with pytest.raises(ValueError, match=r"."):
            read(text)
    assert read_gcp_maintenance(text) == []


@pytest.mark.parametrize(
    "event", [7, None, {}, {"EventType": "Preempt"}, {"EventType": 7, "Resources": ["vm"], "EventStatus": "Started"}]
)
def test_events_of_azure_that_make_no_sense_are_passed_over(event: object) -> None:
    import json

    assert read_azure_events(json.dumps({"Events": [event]}), "vm") == []


@pytest.mark.parametrize("time", ["", "soon", "99999-01-01", "2026-11-26T22:30:00", None])
def test_a_notice_counts_whatever_its_time_looks_like(time: str | None) -> None:
    import json

    notice = read_aws_action(json.dumps({"action": "stop\x1b[2J", "time": time}))
    assert notice.event == "spot instance action stop"
    assert notice.deadline in (None, 1_795_732_200.0)


def failing(error: Exception) -> Fetch:
    def fetch(*_: object) -> Answer:
        raise error

    return fetch


@pytest.mark.parametrize(
    ("cloud", "fetch", "words"),
    [
        (FakeAws(), failing(TimeoutError("timed out")), "--http-put-response-hop-limit 2`, or use the host's network"),
        (FakeGcp(), failing(TimeoutError("timed out")), "does not answer; a NetworkPolicy of Kubernetes can block it"),
        (FakeAws(), failing(ConnectionRefusedError(111, "refused")), "gives no usable answer"),
        (FakeAws(), fetch_from("http://[bad"), "gives no usable answer"),
        (FakeGcp(), fetch_from("http://127.0.0.1:port"), "gives no usable answer"),
        (FakeAws(), lambda *_: Answer(403, ""), "--http-endpoint enabled`"),
        (FakeAws(), lambda *_: Answer(200, "<html>\n"), "HTTP status 200 for /latest/api/token"),
        (FakeGcp(), lambda *_: Answer(404, ""), "HTTP status 404 for instance/preempted"),
        (FakeAzure(), lambda *_: Answer(500, ""), "HTTP status 500"),
    ],
)
def test_a_service_that_is_of_no_use_is_reported_once_with_what_to_type_and_asked_less_often(
    cloud: Cloud, fetch: Fetch, words: str
) -> None:
    play = Play(cloud, fetch=fetch)
    pauses = []
    for _ in range(12):
        assert not play.poll()
        pauses.append(play.watch.pause(play.service))
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST
    [line] = play.said
    assert line.startswith("warning: interruption notices cannot be read: ")
    assert words in line


def test_a_service_that_answers_again_is_said_to() -> None:
    cloud, broken = FakeAws(), [True]

    def fetch(method: str, path: str, headers: Any) -> Answer:
        if broken[0]:
            raise OSError("no route")
        return cloud.fetch(method, path, headers)

    play = Play(cloud, fetch=fetch)
    for _ in range(PATIENCE):
        play.poll()
    broken[0] = False
    play.poll()
    assert play.said[1:] == ["interruption notices of AWS are watched again"]
    assert play.watch.pause(play.service) == play.service.pause


def test_a_broken_rebalance_recommendation_hides_no_interruption() -> None:
    cloud = FakeAws(due=0.0)

    def fetch(method: str, path: str, headers: Any) -> Answer:
        return Answer(500, "") if "rebalance" in path else cloud.fetch(method, path, headers)

    assert Play(cloud, fetch=fetch).poll()
    assert not Play(FakeAws(), fetch=lambda *_: Answer(404, "") if "meta" in _[1] else Answer(200, "token")).poll()


@pytest.mark.parametrize("name", CLOUDS)
def test_requests_go_to_the_service_itself_past_every_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    cloud = CLOUDS[name](due=0.0)
    with serve(cloud) as address:
        found = SERVICES[name](fetch_from(address)).poll(cloud.now, wait=False)
    assert [notice.warning for notice in found.notices] == [False]


def test_the_address_is_link_local_or_what_the_clouds_own_variables_name() -> None:
    usual = "http://169.254.169.254"
    assert [address_of(name, {}) for name in CLOUDS] == [usual] * 3
    assert (
        address_of("aws", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]"}) == "http://[fd00:ec2::254]"
    )
    assert address_of("gcp", {"GCE_METADATA_HOST": "127.0.0.1:8080"}) == "http://127.0.0.1:8080"
    assert address_of("azure", {"GCE_METADATA_HOST": "127.0.0.1:8080"}) == usual


@pytest.fixture
def stops() -> Iterator[Stops]:
    with Stops() as stops:
        yield stops


def test_a_notice_is_a_request_to_stop_that_wakes_whoever_waits(stops: Stops) -> None:
    cloud = FakeAws(due=0.0)
    with ExitStack() as stack:
        address = stack.enter_context(serve(cloud))
        service: Callable[[], Any] = lambda: SERVICES["aws"](fetch_from(address))  # noqa: E731
        stack.enter_context(NoticeWatch(Watched("aws", "a test"), stops.announce, lambda line: None, service))
        assert stops.wait(60), "the notice wakes it"
    [stop] = stops.came
    assert (stop.number, stop.here, stop.notice, stops.word) == (signal.SIGTERM, True, True, "stopped")
    assert stop.name.startswith("AWS interruption notice (spot instance action terminate, deadline ")


@pytest.mark.parametrize(
    ("left", "until"),
    [
        (120.0, 120.0 - LEAVE),
        (30.0, 25.0),
        (8.0, 4.0),
        (0.0, float("inf")),
        (-3600.0, float("inf")),
        (None, float("inf")),
    ],
)
def test_a_node_leaves_before_its_deadline_and_a_save_gets_most_of_a_short_time(
    stops: Stops, left: float | None, until: float
) -> None:
    """A deadline that has passed says that clocks differ: then the usual grace counts."""
    stops.announce("a notice", left)
    assert stops.by - stops.came[0].at == pytest.approx(until)


def test_the_deadline_of_a_machine_shortens_the_grace_and_never_extends_it() -> None:
    for by, end in ((25.0, 25.0), (500.0, 110.0)):
        deadline = Deadline(110.0)
        deadline.leave_by(by)
        deadline.stop(0.0)
        deadline.leave_by(by)
        assert deadline.left(0.0) == end


def test_notices_read_well() -> None:
    assert Notice("AWS", "spot instance action stop", 1_795_732_200.0).text == (
        "AWS interruption notice (spot instance action stop, deadline 2026-11-26 22:30:00 UTC)"
    )
