"""What schemas miss: all manifests are well, and each rule notices the one field that is broken on purpose."""

import itertools
import re
from pathlib import Path

import pytest
from breaking import GONE, POD, TRAIN, Break, broken
from job_rules import expected_policy
from kubectl import K8S, compose, find_components, find_folders, kustomize, read_documents
from semantics import findings

from slipway.protocol.errors import CANCELLED, CONFIGURATION, FAILED, NO_PROGRESS, PEER, STOPPED, UNHEALTHY, USAGE

pytestmark = pytest.mark.core

POLICY = "spec podFailurePolicy rules"
NOBODY = ("bash -c", "hostPath", "privileged", "latest")  # may stand in no manifest
SET = {"document": "JobSet slipway", "folder": "jobset"}
RUN = {"document": "TrainJob slipway", "folder": "trainer"}
RUNTIME = {"document": "ClusterTrainingRuntime slipway", "folder": "trainer"}
DOWNLOAD = {"document": "Job slipway-download", "folder": "overlays/download"}
BOARD = {"document": "Deployment slipway-tensorboard"}
METRICS = "overlays/metrics"
MONITOR = {"document": "PodMonitor slipway", "folder": METRICS}
ROW = "spec replicatedJobs 0 template spec"

JOBS = (
    Break(f"{POD} restartPolicy", "OnFailure", "podFailurePolicy needs restartPolicy: Never"),
    Break(f"{POLICY} 0 onPodConditions", [{"type": "DisruptionTarget"}], "exit codes or conditions"),
    Break(f"{POLICY} 1 onExitCodes", GONE, "exit codes or conditions"),
    Break(f"{POLICY} 0 onExitCodes values", [78, 2, 79, 93], "must ascend"),
    Break(f"{POLICY} 0 onExitCodes values", [2, 78, 78, 79, 93], "must ascend"),
    Break(f"{POLICY} 0 onExitCodes values", [0, 2, 78, 79, 93], "0 is no failure"),
    Break(f"{POLICY} 0 onExitCodes values", [2, 78, 79, 93, 137], "the table of exit codes says"),
    Break(f"{POLICY} 0 onExitCodes values", [2, 78, 93], "the table of exit codes says"),
    Break(f"{POLICY} 0 onExitCodes containerName", "trian", "there is no container 'trian'"),
    Break(f"{POLICY} 1 action", "Count", "the table of exit codes says"),
    Break(f"{POLICY} 2", GONE, "the table of exit codes says"),
    Break(f"{POLICY} 0 onExitCodes values", [2, 78, 79], "the table of exit codes says", **DOWNLOAD),
    Break("spec backoffLimit", 6, "backoffLimit is 6, not None"),
    Break("spec backoffLimitPerIndex", 2, "backoffLimitPerIndex is 2, not 3"),
    Break("spec backoffLimitPerIndex", GONE, "backoffLimitPerIndex is None, not 3"),
    Break("spec maxFailedIndexes", 1, "maxFailedIndexes is 1, not 0"),
    Break("spec maxFailedIndexes", GONE, "maxFailedIndexes is None, not 0"),
    Break("spec backoffLimit", GONE, "backoffLimit is None, not 3", **DOWNLOAD),
    Break("spec podReplacementPolicy", "TerminatingOrFailed", "not Failed"),
    Break("spec selector", {"matchLabels": {"a": "b"}}, "the controller's to set"),
    Break("spec parallelism", 1, "the number of nodes is not the same everywhere"),
    Break("spec completions", 3, "the number of nodes is not the same everywhere"),
    Break(f"{TRAIN} env NNODES value", "4", "the number of nodes is not the same everywhere"),
    Break("spec completionMode", "NonIndexed", "completionMode is not Indexed"),
    Break("spec successPolicy rules 0 succeededIndexes", "0-1", "node 0 alone decides"),
    Break("spec successPolicy", GONE, "node 0 alone decides"),
    Break("spec failurePolicy rules 0 action", "RestartJobSet", "does not end the set", **SET),
    Break("spec replicatedJobs 0 replicas", 2, "2 Jobs, not one", **SET),
    Break(f"{ROW} podFailurePolicy", GONE, "the table of exit codes says", **SET),
    Break("spec trainer env", [{"name": "NNODES", "value": "2"}], "PET_NNODES says", **RUN),
    Break("spec runtimeRef name", "torch", "its runtime is not here", **RUN),
    Break("kind", "CronJob", "CronJob: no rule looks at it"),
)

NETWORK = (
    Break("metadata name", "s" * 62, "cannot be a host's or a Service's name (64 characters)"),
    Break("metadata name", "s" * 57, "cannot be a host's or a Service's name (66 characters)", **SET),
    Break("metadata name", "0slipway", "cannot be a host's or a Service's name", "Service slipway"),
    Break("metadata labels team", "x" * 64, "cannot be the value of label team"),
    Break("metadata name", "slipway", "stands there twice", "NetworkPolicy slipway-tensorboard"),
    Break("spec template metadata labels app.kubernetes.io/instance", "other", "its pods' labels are"),
    Break("spec template metadata labels app.kubernetes.io/component", "other", "its pods' labels are"),
    Break("spec template metadata labels", GONE, "its pods' labels are"),
    Break("spec selector matchLabels app.kubernetes.io/instance", "x", "selects other pods than its own", **BOARD),
    Break(f"{POD} subdomain", "nodes", "there is no Service for subdomain 'nodes'"),
    Break(f"{POD} subdomain", GONE, "there is no Service for subdomain None"),
    Break("metadata namespace", "other", "there is no Service for subdomain 'slipway' in its namespace"),
    Break("spec clusterIP", GONE, "must be headless", "Service slipway"),
    Break("spec publishNotReadyAddresses", False, "must be headless", "Service slipway"),
    Break("spec selector app.kubernetes.io/instance", "x", "selects other pods", "Service slipway"),
    Break("spec selector", {"app.kubernetes.io/name": "slipway"}, "of 2 templates", "Service slipway"),
    Break("spec ports 0 targetPort", "web", "has no port web", "Service slipway-tensorboard"),
    Break("spec ports", GONE, "has no port", "Service slipway-tensorboard"),
    Break("spec ports", [{"port": 29500}], "has no port 29500", "Service slipway"),
    Break("spec network", {"enableDNSHostnames": False}, "no names before they are ready", **SET),
    Break(f"{ROW} template spec subdomain", "slipway", "JobSet's to set", **SET),
    Break("spec podSelector matchLabels app.kubernetes.io/instance", "x", "of 0 templates", "NetworkPolicy slipway"),
    Break("spec podSelector", {}, "0 NetworkPolicies apply", "NetworkPolicy slipway"),
    Break("spec podSelector matchLabels", {"app.kubernetes.io/name": "slipway"}, "of 2 templates", "NetworkPolicy slipway"),
    Break("spec policyTypes", ["Ingress"], "both directions", "NetworkPolicy slipway"),
    Break("spec ingress 0 from", GONE, "others reach its pods", "NetworkPolicy slipway"),
    Break("spec ingress 0 ports", [{"port": 29500}], "others reach its pods", "NetworkPolicy slipway"),
    Break("spec ingress 0 from", GONE, "everybody reaches its pods", "NetworkPolicy slipway-tensorboard"),
    Break("spec ingress 0 ports 0 port", "web", "has no port web", "NetworkPolicy slipway-tensorboard"),
    Break("spec ingress 0", {}, "others reach its pods", "NetworkPolicy slipway-download", "overlays/download"),
    Break("spec selector matchLabels app.kubernetes.io/instance", "x", "of 0 templates", **MONITOR),
    Break("spec podMetricsEndpoints 0 port", "web", "has no port web", **MONITOR),
    Break(f"{TRAIN} env SLIPWAY_METRICS_ADDR value", "127.0.0.1", "does not answer its PodMonitor", folder=METRICS),
    Break(f"{TRAIN} env SLIPWAY_METRICS_PORT value", "9471", "does not answer its PodMonitor", folder=METRICS),
    Break("spec ingress 1 ports", GONE, "others reach its pods", "NetworkPolicy slipway", METRICS),
    Break("spec egress 0", GONE, "do not reach each other", "NetworkPolicy slipway"),
    Break("spec egress 1", GONE, "do not reach what they need", "NetworkPolicy slipway"),
    Break("spec egress 1 ports 0", GONE, "do not reach what they need", "NetworkPolicy slipway"),
    Break("spec egress 2", {}, "its pods may do more", "NetworkPolicy slipway"),
    Break("spec egress 2", {"ports": [{"port": 443}]}, "do not reach what they need", "NetworkPolicy slipway"),
    Break("spec egress 1", GONE, "do not reach", "NetworkPolicy slipway-download", "overlays/download"),
    Break("spec podSelector matchLabels", {"x": "y"}, "0 NetworkPolicies", "NetworkPolicy slipway", "trainer"),
    Break(f"{POD} topologySpreadConstraints 0 labelSelector", {"matchLabels": {"x": "y"}}, "speaks of other pods"),
)  # fmt: skip

PODS = (
    Break(f"{TRAIN} args 1", "gtp", "'gtp' is neither"),
    Break(f"{TRAIN} args", ["run", "gpt", "--stpes", "5"], "--stpes"),
    Break(f"{TRAIN} args", ["run", "--max-restart", "5", "gpt"], "--max-restart"),
    Break(f"{TRAIN} args", ["gpt"], "is not run"),
    Break(f"{TRAIN} args", ["run", "--node-rank", "1", "gpt"], "args say RANK"),
    Break(f"{TRAIN} args", ["run", "gpt", "--standalone"], "args say standalone"),
    Break(f"{TRAIN} args 1", "$(WORKLOAD)", "the kubelet replaces $(WORKLOAD)"),
    Break(f"{TRAIN} args", ["bash", "-c", "slipway run"], "a shell stands before the program"),
    Break(f"{TRAIN} command", ["sleep"], "command replaces the image's entry point"),
    Break("spec trainer args", ["run", "gtp"], "'gtp' is neither", **RUN),
    Break("spec trainer command", ["torchrun"], "command replaces the image's entry point", **RUN),
    Break(f"{TRAIN} args", ["data", "fetsh", "x"], "is not data fetch", **DOWNLOAD),
    Break(f"{TRAIN} args 3", "--revison=1", "--revison", **DOWNLOAD),
    Break(f"{TRAIN} args 0", "run", "is not tensorboard", **BOARD),
    Break(f"{TRAIN} image", "registry.example:5000/slipway", "needs a tag"),
    Break(f"{TRAIN} image", "slipway:latest", "not latest"),
    Break("spec trainer image", "slipway", "needs a tag", **RUN),
    Break(f"{POD} initContainers", [{"name": "wait", "image": "busybox"}], "wait: image 'busybox' needs a tag"),
    Break(f"{TRAIN} lifecycle", {"preStop": {"sleep": {"seconds": 5}}}, "hooks are not needed"),
    Break(f"{TRAIN} readinessProbe", {"exec": {"command": ["true"]}}, "would end training"),
    Break(f"{TRAIN} env new", {"name": "JOB_COMPLETION_INDEX", "value": "0"}, "the scheduler says it"),
    Break(f"{TRAIN} env new", {"name": "WORLD_SIZE", "value": "2"}, "the scheduler says it"),
    Break(f"{TRAIN} env new", {"name": "PET_NNODES", "value": "2"}, "the scheduler says it"),
    Break(f"{TRAIN} env new", {"name": "MASTER_ADDR", "value": "slipway-0"}, "the scheduler says it"),
    Break(f"{TRAIN} env new", {"name": "NNODES", "value": "2"}, "NNODES is set twice"),
    Break(f"{TRAIN} env new", {"name": "SLIPWAY_GRACE", "value": "90"}, "SLIPWAY_GRACE is no setting"),
    Break(f"{TRAIN} env new", {"name": "SLIPWAY_HANG_SECONDS", "value": "5m"}, "SLIPWAY_HANG_SECONDS=5m"),
    Break(f"{TRAIN} env new", {"name": "HF_TOKEN", "value": "x"}, "training needs no token"),
    Break(f"{TRAIN} env NPROC_PER_NODE", GONE, "would train without them"),
    Break(f"{TRAIN} env new", {"name": "NPROC_PER_NODE", "value": "gpu"}, "would not start", folder="overlays/cpu"),
    Break("spec trainer env", [{"name": "SLIPWAY_BACKEND", "value": "auto"}], "would train without them", **RUN),
    Break(f"{TRAIN} env HF_HUB_OFFLINE", GONE, "HF_HUB_OFFLINE=1 is missing"),
    Break(f"{POD} terminationGracePeriodSeconds", GONE, "is None, not 120"),
    Break(f"{TRAIN} env new", {"name": "SLIPWAY_GRACE_SECONDS", "value": "290"}, "is 120, not 300"),
    Break(f"{TRAIN} args", ["run", "gpt", "--grace-seconds", "50"], "is 120, not 60"),
    Break(f"{TRAIN} terminationMessagePolicy", GONE, "terminationMessagePolicy"),
    Break(f"{TRAIN} volumeMounts shm name", "shared", "there is no volume shared"),
    Break(f"{TRAIN} volumeMounts shm", GONE, "volume shm is mounted nowhere"),
    Break(f"{TRAIN} volumeMounts tmp", GONE, "nothing can be written to /tmp"),
    Break(f"{TRAIN} volumeMounts checkpoints readOnly", True, "nothing can be written to /checkpoints"),
    Break(f"{TRAIN} volumeMounts checkpoints readOnly", False, "TensorBoard may write", **BOARD),
    Break(f"{POD} volumes shm emptyDir medium", GONE, "/dev/shm is"),
    Break(f"{POD} volumes shm emptyDir sizeLimit", "64Mi", "/dev/shm is"),
    Break(f"{POD} volumes tmp emptyDir", {"sizeLimit": "1Gi"}, "volume tmp has a sizeLimit"),
    Break(f"{TRAIN} resources limits ephemeral-storage", "10Gi", "beyond which its pod is evicted"),
)


@pytest.mark.parametrize("folder", find_folders(), ids=lambda folder: str(folder.relative_to(K8S)))
def test_nothing_is_found_in_what_is_applied(folder: Path) -> None:
    text = kustomize(folder)
    assert not findings(read_documents(text))
    assert not [words for words in NOBODY if words in text]


def test_nothing_is_found_in_what_is_applied_as_a_file() -> None:
    text = "---\n".join(file.read_text(encoding="utf-8") for file in sorted(K8S.glob("*.yaml")))
    assert not findings(read_documents(text))
    assert not [words for words in NOBODY if words in text]


def test_every_claim_that_is_mounted_is_among_the_claims() -> None:
    mounted = {name for folder in find_folders() for name in re.findall(r"claimName: (\S+)", kustomize(folder))}
    claims = read_documents((K8S / "claims.yaml").read_text(encoding="utf-8"))
    assert mounted == {claim["metadata"]["name"] for claim in claims}


@pytest.mark.parametrize(
    "pair", list(itertools.permutations(find_components(), 2)), ids=lambda pair: "-".join(p.name for p in pair)
)
def test_nothing_is_found_in_two_components_in_any_order(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert findings(read_documents(compose(tmp_path, K8S / "base/multi", *pair))) == []


def test_components_change_training_and_leave_the_download_as_it_is(tmp_path: Path) -> None:
    download = read_documents(kustomize(K8S / "overlays/download"))
    both = compose(tmp_path, K8S / "base/multi", K8S / "overlays/download", *find_components())
    assert [document for document in download if document not in read_documents(both)] == []


@pytest.mark.parametrize("base", ["single", "multi"])
@pytest.mark.parametrize("component", find_components(), ids=lambda component: component.name)
def test_nothing_is_found_in_a_component_on_a_base(base: str, component: Path, tmp_path: Path) -> None:
    assert not findings(read_documents(compose(tmp_path, K8S / "base" / base, component)))


@pytest.mark.parametrize("case", [*JOBS, *NETWORK, *PODS], ids=lambda case: case.title)
def test_what_is_broken_is_found(case: Break) -> None:
    found = broken(case)
    assert any(case.finding in text for text in found), found


def test_the_policy_is_made_from_the_table_of_exit_codes() -> None:
    ends, ignored, disrupted = expected_policy("train")
    assert (ends["action"], ends["onExitCodes"]["values"]) == (
        "FailJob",
        [USAGE, CONFIGURATION, CANCELLED, NO_PROGRESS],
    )
    assert (ignored["action"], ignored["onExitCodes"]["values"]) == ("Ignore", [STOPPED])
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    named = {*ends["onExitCodes"]["values"], *ignored["onExitCodes"]["values"]}
    assert not named & {0, FAILED, PEER, UNHEALTHY, 137}  # those are retried, within backoffLimitPerIndex


def test_a_script_of_the_user_may_have_any_words() -> None:
    assert not broken(Break(f"{TRAIN} args", ["run", "--check", "train.py", "--lr", "$$(HOME)"], ""))
