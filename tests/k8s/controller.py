"""The Job controller's part: a pod for each index, replaced when it failed, until a rule ends the Job.

As the real one, but for two things: it looks every 0.3 s, and its back-off passes ten times as fast.
"""

import copy
import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from containers import PATIENCE
from kubectl import Document
from pod import Pod
from policy import Condition, due, judge, judge_restarts
from waiting import wait_until

Start = Callable[[Document, int], Pod]
HASTE = 10  # seconds of the real one's back-off in one of ours
INDEX = "batch.kubernetes.io/job-completion-index"


class Job:
    """A Job. Time passes for it only in `until`, `finish` and `delete`."""

    def __init__(self, document: Document, start: Start) -> None:
        """`start` starts a pod with an index."""
        self.name: str = document["metadata"]["name"]
        self.spec: Document = document["spec"]
        self._indexed = self.spec.get("completionMode") == "Indexed"
        self._completions = self.spec.get("completions", 1)
        assert self.spec.get("podReplacementPolicy", "Failed") == "Failed"
        self._template: Document = self.spec["template"]
        self._start = start
        self.pods: list[Pod] = []  # all there were, in the order of their starts
        self.conditions: list[Condition] = []
        self.sync()

    def sync(self) -> None:
        """One look at the pods: end the Job, or replace who is missing; kubelet's as well, if containers restart in place."""
        for pod in self.pods:
            pod.keep_up(HASTE)
        over = [pod for pod in self.pods if not pod.running]
        alive = [pod for pod in self.pods if pod not in over]
        ended = [pod.ended for pod in over]
        restarts = sum(pod.restarts for pod in alive)
        if not self.conditions and (condition := judge(self.spec, ended) or judge_restarts(self.spec, restarts)):
            self.conditions.append(condition)
            for pod in alive:
                pod.stop()
        if not self.conditions:
            seated = {pod.index for pod in alive} | {pod.index for pod in over if not pod.ended.code}
            missing = [index for index in range(self._completions) if index not in seated]
            missing = [index for index in missing if due(self.spec, ended, index, HASTE) <= time.monotonic()]
            for index in missing[: self.spec.get("parallelism", 1) - len(alive)]:
                self.pods.append(self._start(self.pod_for(index), index))
        elif len(self.conditions) == 1 and not alive:
            [target] = self.conditions
            kind = "Failed" if target.type == "FailureTarget" else "Complete"
            self.conditions.append(Condition(kind, target.reason, target.message))

    def pod_for(self, index: int) -> Document:
        """The pod that the controller makes from the template."""
        pod = copy.deepcopy(self._template)
        metadata = pod.setdefault("metadata", {})
        told = {"batch.kubernetes.io/job-name": self.name} | ({INDEX: str(index)} if self._indexed else {})
        for kind in ("labels", "annotations"):
            metadata[kind] = metadata.get(kind, {}) | told
        metadata |= {"name": f"{self.name}-{index}-{secrets.token_hex(3)[:5]}", "namespace": "default"}
        pod["spec"]["hostname"] = f"{self.name}-{index}"
        reference = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in pod["spec"]["containers"] if self._indexed else ():
            own = container.setdefault("env", [])
            if all(variable["name"] != "JOB_COMPLETION_INDEX" for variable in own):
                own.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": reference})
        return pod

    def pod(self, index: int) -> Pod:
        """The newest pod with this index."""
        return next(pod for pod in reversed(self.pods) if pod.index == index)

    def until(self, holds: Callable[[], object]) -> None:
        """Go on until something holds."""

        def came_to_pass() -> object:
            if found := holds():
                return found
            assert len(self.conditions) < 2, f"the Job ended before:\n{self}"
            self.sync()
            return False

        wait_until(came_to_pass, lambda: f"what should come to pass:\n{self}", PATIENCE, every=0.3)

    def finish(self) -> tuple[str, str]:
        """Go on to the end; the last condition of the Job, and its reason."""
        self.until(lambda: len(self.conditions) == 2)
        return self.conditions[1].type, self.conditions[1].reason

    def delete(self) -> list[int]:
        """`kubectl delete job`: all pods are told to end; their exit codes once they have, in the order of their indexes."""
        last = [pod for pod in self.pods if pod.running]
        for pod in last:
            pod.stop()
        gone = lambda: not any(pod.running for pod in last)  # noqa: E731
        wait_until(gone, lambda: f"their end:\n{self}", PATIENCE, every=0.3)
        return [pod.ended.code for pod in sorted(last, key=lambda pod: pod.index)]

    @property
    def codes(self) -> list[tuple[int, int]]:
        """Index and exit code of every pod that has ended, in the order of their starts."""
        return [(pod.index, pod.ended.code) for pod in self.pods if not pod.running]

    def verdicts(self) -> list[dict[str, Any]]:
        """The termination message of the newest pod of each index."""
        return [json.loads(self.pod(index).message) for index in range(self._completions)]

    def __str__(self) -> str:
        """The record: conditions, and each pod with its end, message and output."""
        lines = [f"{each.type}: {each.reason}: {each.message}" for each in self.conditions]
        for pod in self.pods:
            end = "is running" if pod.running else f"ended with {pod.ended.code}: {pod.message}"
            lines += [f"--- {pod.name} {end}", pod.text]
        return "\n".join(lines)
