"""What must be true of Jobs and no schema says: when a pod is replaced, when the Job ends, how many pods it has."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from templates import TRAINING, Document, Pods, name_of, of_kind

from slipway.launch.verdict.restarts import DEFAULT as RETRIES
from slipway.protocol.errors import EXITS

ACTIONS = {"not retry": "FailJob", "requeue": "Ignore"}  # of what the table of exit codes says; the rest counts
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


def expected_policy(container: str) -> list[Document]:
    """The rules of podFailurePolicy that the table of exit codes asks for."""
    rules: list[Document] = []
    for then, action in ACTIONS.items():
        codes = sorted(code for code, row in EXITS.items() if row.then == then)
        exits = {"containerName": container, "operator": "In", "values": codes}
        rules.append({"action": action, "onExitCodes": exits})
    return [*rules, {"action": "Ignore", "onPodConditions": [DISRUPTED]}]


def policy_is_valid(pods: Pods, job: Document) -> Iterator[str]:
    """The API server's own rules, which refuse a manifest that its schema lets pass."""
    rules = (job.get("podFailurePolicy") or {}).get("rules", [])
    if rules and pods.spec.get("restartPolicy") != "Never":
        yield "podFailurePolicy needs restartPolicy: Never"
    for number, rule in enumerate(rules):
        exits = rule.get("onExitCodes")
        if bool(exits) == bool(rule.get("onPodConditions")):
            yield f"podFailurePolicy rule {number}: exit codes or conditions, one of them"
        if not exits:
            continue
        values = exits.get("values", [])
        if values != sorted(set(values)) or not values:
            yield f"podFailurePolicy rule {number}: values {values} must ascend, each once"
        if 0 in values and exits.get("operator") == "In":
            yield f"podFailurePolicy rule {number}: 0 is no failure"
        if exits.get("containerName") not in [None, *(container.get("name") for container in pods.containers)]:
            yield f"podFailurePolicy rule {number}: there is no container {exits['containerName']!r}"


def policy_follows_the_table(pods: Pods, job: Document) -> Iterator[str]:
    rules = (job.get("podFailurePolicy") or {}).get("rules")
    if rules != (expected := expected_policy(str(pods.main.get("name")))):
        yield f"podFailurePolicy is {rules}, and the table of exit codes says {expected}"


def size_of(pods: Pods) -> tuple[int | None, int]:
    """How many pods NNODES counts, None where it is no number of nodes; and without how many of them the job continues."""
    match = re.fullmatch(r"(?:(\d+):)?(\d+)(?:\+(\d+))?", pods.env.get("NNODES") or "")
    if not match:
        return None, 0
    least, most, spares = (int(number or 0) for number in match.groups())
    return most + spares, spares or most - (least or most)


def pods_are_replaced(pods: Pods, job: Document) -> Iterator[str]:
    indexed = job.get("completionMode") == "Indexed"
    expected: dict[str, Any] = {
        "podReplacementPolicy": "Failed",
        # The back-off of the other counts the failed pods of all nodes, so that few that end together wait for minutes.
        "backoffLimitPerIndex": RETRIES if indexed else None,
        # Else the others would wait for a node that nobody replaces.
        "maxFailedIndexes": size_of(pods)[1] if indexed else None,
        "backoffLimit": None if indexed else RETRIES,
    }
    for name, value in expected.items():
        if job.get(name) != value:
            yield f"{name} is {job.get(name)}, not {value}"
    yield from (f"{name} is the controller's to set" for name in ("selector", "manualSelector") if name in job)
    if pods.spec.get("restartPolicy") != "Never":
        yield f"restartPolicy is {pods.spec.get('restartPolicy')}: Never lets the Job see how a pod ended"


def training_is_indexed(pods: Pods, job: Document) -> Iterator[str]:
    if pods.role != TRAINING:
        return
    counts = {name: job.get(name) for name in ("completions", "parallelism")}
    if pods.kind == "TrainJob" or pods.kind.endswith("Runtime"):
        if "NNODES" in pods.env:
            yield "NNODES is set, and Trainer's PET_NNODES says how many nodes there are"
    else:
        counts["NNODES"] = size_of(pods)[0]
    if len(set(counts.values())) > 1 or not all(counts.values()):
        yield f"the number of nodes is not the same everywhere: {counts}"
    if job.get("completionMode") != "Indexed":
        yield "completionMode is not Indexed: no pod would know its rank"
    if job.get("successPolicy") != {"rules": [{"succeededIndexes": "0"}]}:
        yield f"successPolicy is {job.get('successPolicy')}: node 0 alone decides"


JOB_RULES = (policy_is_valid, policy_follows_the_table, pods_are_replaced, training_is_indexed)


def sets_are_one_job(documents: Sequence[Document]) -> Iterator[str]:
    """A JobSet holds one Job, as each counts its pods from 0, and starts no new one where an exit code ended it."""
    for document in of_kind(documents, "JobSet"):
        if (count := sum(row.get("replicas", 1) for row in document["spec"]["replicatedJobs"])) != 1:
            yield f"JobSet {name_of(document)}: {count} Jobs, not one"
        policy = document["spec"].get("failurePolicy") or {}
        ends = [rule for rule in policy.get("rules", ()) if rule.get("action") == "FailJobSet"]
        reasons = {reason for rule in ends for reason in rule.get("onJobFailureReasons", ())}
        if policy and "PodFailurePolicy" not in reasons:
            yield f"JobSet {name_of(document)}: an exit code that ends the Job (PodFailurePolicy) does not end the set"
