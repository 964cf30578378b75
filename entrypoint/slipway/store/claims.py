"""Which attempt may write: the one with the highest claim. A claim is an object that only one launcher can create."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from slipway.protocol.files import parse_json
from slipway.store.layout import CLAIM, WRITABLE, claim_name
from slipway.store.objects import MissingObjectError, ObjectStore


class SupersededAttemptError(Exception):
    """A later attempt has claimed the run; nothing more is written or deleted. The message says who."""


def highest_claim(store: ObjectStore, run: str) -> int | None:
    """The highest number that an attempt has claimed; None where nobody has the run."""
    return max(_claimed(store, run), default=None)


def identify(store: ObjectStore, run: str) -> str:
    """What tells a run from one that has its name later, by its first claim, which stays; empty where nobody has the run."""
    try:
        return hashlib.sha256(store.read(claim_name(run, min(_claimed(store, run))))).hexdigest()[:16]
    except (ValueError, MissingObjectError):
        return ""


def _claimed(store: ObjectStore, run: str) -> list[int]:
    folder = f"{run}/claims/"
    names = (name.removeprefix(folder) for name in store.list_objects(folder))
    return [int(found[1]) for name in names if (found := CLAIM.fullmatch(name))]


def read_claim(store: ObjectStore, run: str, attempt: int) -> dict[str, Any]:
    """What a claim says; nothing where it is damaged."""
    try:
        content = parse_json(store.read(claim_name(run, attempt)))
    except (ValueError, RecursionError, MissingObjectError):
        return {}
    return content if isinstance(content, dict) else {}


def creates_once(store: ObjectStore) -> bool:
    """Whether an object that is there is not created again, on which all claims rely. Raises StoreError."""
    return not (store.create(WRITABLE, b"") and store.create(WRITABLE, b""))


def claim(store: ObjectStore, run: str, attempt: int, content: Mapping[str, Any], *, finished: bool = False) -> None:
    """Claim an attempt. `content` has a `nonce` of this launcher. Raises SupersededAttemptError where another one has it, or a
    later one. One that is `finished` is also that of any launcher that has this run on its disk: it changes no more.
    """
    created = store.create(claim_name(run, attempt), json.dumps(content, indent=1).encode())
    if not created:
        there = read_claim(store, run, attempt)
        same = isinstance(there.get("run"), dict) and there["run"].get("started") == content["run"].get("started")
        if there.get("nonce") != content["nonce"] and not (finished and same):
            raise SupersededAttemptError(
                f"attempt {attempt} of {run} belongs to another launcher, on {there.get('host')}"
            )
    require_newest(store, run, attempt)


def require_newest(store: ObjectStore, run: str, attempt: int) -> None:
    """Raise SupersededAttemptError where a later attempt has claimed the run."""
    newest = highest_claim(store, run)
    if newest is not None and newest > attempt:
        where = read_claim(store, run, newest).get("host")
        raise SupersededAttemptError(
            f"attempt {newest} has continued {run} on {where}, so attempt {attempt} copies nothing more"
        )
