"""What metadata services say about the end of their machine, read into notices. Pure: text comes in.

The formats:
AWS: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and rebalance-recommendations.html
Google Cloud: https://cloud.google.com/compute/docs/instances/create-use-spot and metadata/getting-live-migration-notice
Azure: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from slipway.launch.resolve.spot import AWS, AZURE, GCP, TITLES
from slipway.protocol.printable import one_line, utc

WORD = 40  # characters of a cloud's own word that are shown
PREEMPTED_SECONDS = 30.0  # from Google Cloud's notice until the machine is switched off
LEAVING = ("Preempt", "Terminate", "Reboot", "Redeploy")  # Azure's events after which the processes are gone
PENDING = ("Scheduled", "Started")  # the states of Azure's events that are not over


class Notice(NamedTuple):
    """An announcement: the `cloud` for people, the `event` in its own words, and the `deadline` (Unix seconds by the cloud's
    clock), None where it gives none. `warning`: nothing follows from it yet. `approval`: the id of an event that may be approved.
    """

    cloud: str
    event: str
    deadline: float | None = None
    warning: bool = False
    approval: str = ""

    @property
    def text(self) -> str:
        """How people read it."""
        kind = "warning" if self.warning else "interruption notice"
        until = f", deadline {utc(self.deadline)}" if self.deadline is not None else ", without a deadline"
        return f"{self.cloud} {kind} ({self.event}{'' if self.warning else until})"


def read_aws_action(text: str) -> Notice:
    """`spot/instance-action`, which exists only once the instance is to be interrupted. Raises ValueError for anything else."""
    record = _record(text)
    if not isinstance(action := record.get("action"), str) or not action:
        raise ValueError("spot/instance-action names no action")
    return Notice(TITLES[AWS], f"spot instance action {_shown(action)}", _iso_time(record.get("time")))


def read_aws_rebalance(text: str) -> list[Notice]:
    """`events/recommendations/rebalance`: the instance is more likely than others to be interrupted."""
    return [Notice(TITLES[AWS], "rebalance recommendation", warning=True)] if "noticeTime" in text else []


def read_gcp_preempted(text: str, now: float) -> list[Notice]:
    """`instance/preempted`; `now` is the time of the answer. Raises ValueError for anything but TRUE and FALSE."""
    if text.strip() not in ("TRUE", "FALSE"):
        raise ValueError("instance/preempted is neither TRUE nor FALSE")
    return [Notice(TITLES[GCP], "preempted", now + PREEMPTED_SECONDS)] if text.strip() == "TRUE" else []


def read_gcp_maintenance(text: str) -> list[Notice]:
    """`instance/maintenance-event`. A machine that migrates pauses and continues; one with GPUs is ended, within an hour."""
    event = text.strip()
    known = event in ("TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE")
    return [Notice(TITLES[GCP], event, warning=event.startswith("MIGRATE"))] if known else []


def read_azure_events(text: str, machine: str) -> list[Notice]:
    """`scheduledevents` for the machine of this name, which hears of others in its group, too. Raises ValueError."""
    events = _record(text).get("Events")
    if not isinstance(events, list):
        raise ValueError("scheduledevents has no list of Events")
    return [notice for event in events if isinstance(event, dict) and (notice := _read_azure_event(event, machine))]


def _read_azure_event(event: dict[str, Any], machine: str) -> Notice | None:
    kind, resources = event.get("EventType"), event.get("Resources")
    named = [str(one).lower() for one in resources] if isinstance(resources, list) else []
    if machine.lower() not in named or event.get("EventStatus") not in PENDING or not isinstance(kind, str):
        return None
    if kind not in LEAVING:  # Freeze: the machine pauses for some seconds
        return Notice(TITLES[AZURE], _shown(kind), warning=True)
    # An approval would end the other machines of an event, too.
    lone = len(named) == 1 and event["EventStatus"] == PENDING[0]
    approval = str(event.get("EventId") or "") if lone else ""
    return Notice(TITLES[AZURE], kind, _http_time(event.get("NotBefore")), approval=approval)


def _record(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    return record


def _shown(word: str) -> str:
    return one_line(word)[:WORD]


def _iso_time(text: object) -> float | None:
    """2026-11-26T22:30:00Z; None for anything else."""
    try:
        found = datetime.fromisoformat(str(text))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _http_time(text: object) -> float | None:
    """Mon, 19 Sep 2016 18:29:47 GMT; None for anything else, such as the empty text of an event that has started."""
    try:
        found = parsedate_to_datetime(str(text))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
