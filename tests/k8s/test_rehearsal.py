"""The manifests of k8s/ as they are, but for the arguments, on a Docker engine: jobs that nobody disturbs, and wrong ones."""

import json
import re
from pathlib import Path

import pytest
from containers import LOUD, docker
from kubectl import K8S, Document, compose, read_documents
from manifests import kustomize, set_to
from next_lines import next_commands
from pod import Pod
from rehearsing import COURSE, SMALL, STEPS, STOPS, Cluster
from shell import type_in
from templates import of_kind

pytestmark = pytest.mark.needs("engine")


def train(documents: list[Document], **env: str) -> list[Document]:
    return set_to(documents, *SMALL, "--steps", "20", **env)


@pytest.mark.pull
def test_two_pods_train_gpt_to_the_same_outcome(cluster: Cluster) -> None:
    job = cluster.apply(train(kustomize("overlays/cpu")))
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert sorted(job.codes) == [(0, 0), (1, 0)], job
    assert "2 nodes × 1 CPU process = 2 processes" in job.pod(0).text
    first, second = job.verdicts()
    assert first == second
    assert (first["word"], first["tallies"]) == ("finished", [{"word": "finished", "nodes": 2}])
    outcomes = [json.loads((pod.results() / "outcome.json").read_text()) for pod in job.pods]
    for outcome in outcomes:  # each launcher has its own clock
        assert outcome.pop("ledger")["seconds"]
        outcome["attempts"] = [(tried["number"], tried["outcome"]) for tried in outcome["attempts"]]
    assert outcomes[0] == outcomes[1]
    assert all(outcomes[0][name] == first[name] for name in ("code", "word", "first", "tallies"))
    for pod in job.pods:
        said = [line for line in pod.text.splitlines() if LOUD.search(line)]
        assert not said, job


def test_a_pod_is_as_locked_down_as_its_manifest_says(cluster: Cluster) -> None:
    job = cluster.apply(set_to(kustomize("overlays/cpu"), "linear", "--epochs", "0"))
    [seen] = json.loads(docker("inspect", job.pod(1).container.name))
    host = seen["HostConfig"]
    assert (host["ReadonlyRootfs"], host["CapDrop"], host["CapAdd"]) == (True, ["ALL"], None)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["Memory"], host["MemorySwap"]) == (4 << 30, 4 << 30)
    assert host["Tmpfs"]["/dev/shm"].endswith(f",size={1 << 30}")
    assert {mount["Destination"] for mount in seen["Mounts"]} >= {"/tmp", "/checkpoints", "/data"}
    assert (seen["Config"]["Hostname"], seen["Config"]["User"]) == ("slipway-1", "1000:0")
    assert "JOB_COMPLETION_INDEX=1" in seen["Config"]["Env"]
    job.delete()


def test_one_pod_is_enough_for_the_base(cluster: Cluster) -> None:
    job = cluster.apply(train(kustomize("base/single")))
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert job.codes == [(0, 0)]
    assert job.pod(0).results().name == "gpt-slipway"


@pytest.mark.parametrize(
    ("args", "code"),
    [(("run", "gpt", "--no-such-option"), 2), (("run", "no-such-workload"), 78)],
    ids=["option", "workload"],
)
def test_a_configuration_error_ends_the_job_without_another_try(
    cluster: Cluster, args: tuple[str, ...], code: int
) -> None:
    job = cluster.apply(set_to(kustomize("overlays/cpu"), *args))
    assert job.finish() == ("Failed", "PodFailurePolicy"), job
    assert f"failed with exit code {code} matching FailJob rule" in job.conditions[1].message
    assert sorted(pod.index for pod in job.pods) == [0, 1], job
    failed = next(pod for pod in job.pods if pod.ended.code == code)
    assert failed.message, "neither a verdict nor the end of the log"


def test_a_job_for_gpus_does_not_train_without_them(cluster: Cluster) -> None:
    job = cluster.apply(set_to(kustomize("base/single"), "run"))
    assert job.finish() == ("Failed", "PodFailurePolicy"), job
    assert "no GPU is visible here" in job.pod(0).message, job


def test_a_job_that_its_user_stops_is_not_started_again(cluster: Cluster) -> None:
    job = cluster.apply(set_to(kustomize("overlays/cpu"), *COURSE), held=STOPS)
    job.until(lambda: job.pod(1).holds)
    docker("exec", job.pod(1).container.name, "slipway", "stop", "gpt-slipway")
    assert job.finish() == ("Failed", "PodFailurePolicy"), job
    assert sorted(job.codes) == [(0, 79), (1, 79)], job


def test_a_node_that_fails_too_often_ends_the_job_once_its_index_has_failed(cluster: Cluster) -> None:
    documents = set_to(kustomize("overlays/cpu"), "run", "-m", "unittest", "no_such_test")
    [job] = of_kind(documents, "Job")
    job["spec"]["backoffLimitPerIndex"] = 1
    ran = cluster.apply(documents)
    assert ran.finish() == ("Failed", "MaxFailedIndexesExceeded"), ran
    assert len([code for _, code in ran.codes if code]) in (3, 4), ran  # the second node may be told to end first
    assert ran.codes.count((0, 1)) == 2 or ran.codes.count((1, 1)) == 2, ran


def test_without_the_service_the_pods_say_so(cluster: Cluster) -> None:
    documents = [each for each in kustomize("overlays/cpu") if each["kind"] != "Service"]
    job = cluster.apply(train(documents, SLIPWAY_RENDEZVOUS_TIMEOUT="4"))
    job.until(lambda: {pod.index for pod in job.pods if not pod.running} == {0, 1})
    assert set(job.codes[:2]) == {(0, 76), (1, 76)}, job
    assert re.search(r"slipway-0\.slipway\..* does not resolve.*Service\b.*\bslipway\b", job.pods[1].text), job
    # Pod 0 finds itself, in its own /etc/hosts.
    assert re.search(
        r"no other pod finds this one: the name of its Service, slipway\..*kubectl get service slipway",
        job.pods[0].text,
    )
    assert not job.conditions, "it goes on trying"


@pytest.mark.timeout(600)
def test_a_job_goes_on_from_the_claims_of_the_one_before_and_what_it_tells_can_be_pasted(
    cluster: Cluster, tmp_path: Path
) -> None:
    parts = [K8S / "components" / name for name in ("cpu", "pvc")]
    documents = set_to(read_documents(compose(tmp_path, K8S / "base/multi", *parts)), *COURSE)
    job = cluster.apply(documents, held=STOPS)
    job.until(lambda: job.pod(1).holds)
    assert job.delete() == [75, 75], job
    stopped = job.verdicts()
    assert stopped[0] == stopped[1]
    again = cluster.apply(documents)
    assert again.finish() == ("Complete", "SuccessPolicy"), again
    assert f"stopped at step {again.pod(0).resumed} of" in stopped[0]["first"]["evidence"], again
    report, sample, longer = next_commands(again.pod(0).text.splitlines())
    for command, shown in ((report, "report.html"), (sample, "def ")):
        pod = run_to_its_end(cluster, command, tmp_path)
        assert pod.ended.code == 0, pod.text
        assert shown in pod.text
    last = cluster.apply(type_in(longer, tmp_path).documents)
    assert last.finish() == ("Complete", "SuccessPolicy"), last
    assert last.pod(0).resumed == STEPS, last
    assert f"step {2 * STEPS}/{2 * STEPS}" in last.pod(0).text


def run_to_its_end(cluster: Cluster, command: str, folder: Path) -> Pod:
    """The pod of a pasted `kubectl run`, once it has ended."""
    document = type_in(command, folder).pod
    assert document
    pod = cluster.start(document, 0, [])
    docker("wait", pod.container.name)
    return pod


@pytest.mark.parametrize("operator", ["jobset", "trainer"])
def test_what_an_operator_makes_of_its_documents_trains_on_two_pods(cluster: Cluster, operator: str) -> None:
    args = ("run", "--nproc-per-node", "1", "linear", "--dataset-size", "64", "--epochs", "1")
    job = cluster.apply(set_to(kustomize(operator), *args, SLIPWAY_BACKEND="gloo"))  # there are no GPUs here
    assert job.finish() == ("Complete", "SuccessPolicy"), job
    assert sorted(job.codes) == [(0, 0), (1, 0)], job
    first, second = job.verdicts()
    assert first == second
    assert first["tallies"] == [{"word": "finished", "nodes": 2}]
