"""What the Job controller makes of pods that ended. Pure; as in Kubernetes' pkg/controller/job (1.31 to 1.33)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubectl import Document

# s; DefaultJobPodFailureBackOff and MaxJobPodFailureBackOff of pkg/controller/job/job_controller.go
FIRST_DELAY, LONGEST_DELAY = 10.0, 600.0


@dataclass(frozen=True)
class Ended:
    """A pod that has ended, `at` so many seconds. `disrupted`: with the condition DisruptionTarget, as an eviction sets it."""

    name: str
    index: int
    container: str
    code: int
    disrupted: bool = False
    at: float = 0.0


@dataclass(frozen=True)
class Condition:
    """A condition of a Job that is true."""

    type: str
    reason: str
    message: str


def judge(spec: Document, pods: Iterable[Ended]) -> Condition | None:
    """What ends the Job after these pods have ended, or None: whoever is missing then is to be replaced."""
    pods = list(pods)
    failed = [(pod, decide(spec, pod)) for pod in pods if pod.code]
    for pod, (action, rule) in failed:
        if action == "FailJob":
            how = f"exit code {pod.code} matching FailJob rule at index {rule}"
            message = f"Container {pod.container} for pod default/{pod.name} failed with {how}"
            return Condition("FailureTarget", "PodFailurePolicy", message)
    counted = Counter(pod.index for pod, (action, _) in failed if action == "Count")
    if "backoffLimitPerIndex" in spec:
        lost = [index for index, count in counted.items() if count > spec["backoffLimitPerIndex"]]
        if len(lost) > spec["maxFailedIndexes"]:
            message = "Job has exceeded the specified maximal number of failed indexes"
            return Condition("FailureTarget", "MaxFailedIndexesExceeded", message)
    elif counted.total() > spec.get("backoffLimit", 6):
        return Condition("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    succeeded = {pod.index for pod in pods if not pod.code}
    for number, rule in enumerate(spec.get("successPolicy", {}).get("rules", [])):
        if indexes(rule["succeededIndexes"]) <= succeeded:
            return Condition("SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {number}")
    if len(succeeded) == spec.get("completions", 1):
        return Condition("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")
    return None


def judge_restarts(spec: Document, restarts: int) -> Condition | None:
    """What ends a Job whose running pods have had so many restarts in place (pastBackoffLimitOnFailure of job_controller.go)."""
    if spec["template"]["spec"]["restartPolicy"] != "OnFailure" or restarts < max(1, spec.get("backoffLimit", 6)):
        return None
    return Condition("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")


def due(spec: Document, pods: Iterable[Ended], index: int, haste: float = 1.0) -> float:
    """When an index may get another pod once these have ended: after a back-off that passes `haste` times as fast.

    Failures that the podFailurePolicy ignores count here, too; without backoffLimitPerIndex so do those of all other
    indexes. Until one succeeds, which of our Jobs ends the Job. As getRemainingTimeForFailuresCount of backoff_utils.go.
    """
    alone = "backoffLimitPerIndex" in spec
    failures = [pod.at for pod in pods if pod.code and (pod.index == index or not alone)]
    if not failures:
        return 0.0
    return max(failures) + min(FIRST_DELAY * 2 ** (len(failures) - 1), LONGEST_DELAY) / haste


def decide(spec: Document, pod: Ended) -> tuple[str, int | None]:
    """The action of the first rule of the podFailurePolicy that a failed pod matches, and its number."""
    rules: Sequence[Document] = spec.get("podFailurePolicy", {}).get("rules", [])
    for number, rule in enumerate(rules):
        if matches(rule, pod):
            assert rule["action"] in ("FailJob", "Ignore", "Count"), rule
            return rule["action"], number
    return "Count", None


def matches(rule: Document, pod: Ended) -> bool:
    """Whether a rule speaks of this pod. An exit code of 0 matches none."""
    if codes := rule.get("onExitCodes"):
        ours = codes.get("containerName", pod.container) == pod.container
        return ours and pod.code != 0 and (pod.code in codes["values"]) == (codes["operator"] == "In")
    held = {("DisruptionTarget", "True" if pod.disrupted else "False")}
    return any((each["type"], each.get("status", "True")) in held for each in rule["onPodConditions"])


def indexes(text: str) -> set[int]:
    """The numbers of `0,2-4`."""
    spans = [(part.partition("-")[0], part.rpartition("-")[2]) for part in str(text).split(",")]
    return {number for first, last in spans for number in range(int(first), int(last) + 1)}
