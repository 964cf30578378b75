"""Pod Security *restricted* and what we ask beyond it: each field, broken on purpose, is noticed in every kind of pod."""

import shlex

import pytest
from breaking import GONE, POD, TRAIN, Break, broken
from shell import run_pod

from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.next_lines import Invocation, as_typed, fill_in

pytestmark = pytest.mark.core

CONTEXT = f"{TRAIN} securityContext"
WHOLE = f"{POD} securityContext"
ROW = "spec replicatedJobs 0 template spec template spec"
RUNTIME = f"spec template {ROW}"
GPU = "nvidia.com/gpu"
RDMA = "rdma/hca_shared_devices_a"
BARE = {"name": "wait", "image": "busybox:1"}
TOKEN = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
UNCONFINED = {"type": "Unconfined"}

CASES = (
    Break(f"{POD} hostNetwork", True, "hostNetwork is set"),
    Break(f"{POD} hostPID", True, "hostPID is set"),
    Break(f"{POD} hostIPC", True, "hostIPC is set"),
    Break(f"{POD} volumes tmp", {"name": "tmp", "hostPath": {"path": "/tmp"}}, "volume tmp is a hostPath"),
    Break(f"{POD} volumes tmp", {"name": "tmp", "nfs": {"server": "a", "path": "/"}}, "volume tmp is a nfs"),
    Break(f"{WHOLE} sysctls", [{"name": "kernel.shmmax", "value": "1"}], "sysctl kernel.shmmax is not allowed"),
    Break(
        "spec template metadata annotations",
        {"container.apparmor.security.beta.kubernetes.io/train": "unconfined"},
        "is unconfined",
    ),
    Break(f"{POD} ephemeralContainers", [BARE], "for debugging"),
    Break(f"{CONTEXT} privileged", True, "privileged"),
    Break(f"{CONTEXT} allowPrivilegeEscalation", GONE, "allowPrivilegeEscalation is not false"),
    Break(f"{CONTEXT} capabilities drop", ["NET_RAW"], "not all capabilities are dropped"),
    Break(f"{CONTEXT} capabilities add", ["IPC_LOCK"], "capabilities ['IPC_LOCK'] are added"),
    Break(f"{CONTEXT} procMount", "Unmasked", "procMount is Unmasked"),
    Break(f"{WHOLE} runAsNonRoot", GONE, "runAsNonRoot is not true"),
    Break(f"{CONTEXT} runAsNonRoot", False, "runAsNonRoot is not true"),
    Break(f"{CONTEXT} runAsUser", 0, "runAsUser is 0"),
    Break(f"{WHOLE} runAsUser", 0, "runAsUser is 0"),
    Break(f"{WHOLE} seccompProfile", GONE, "there is no seccompProfile"),
    Break(f"{CONTEXT} seccompProfile", UNCONFINED, "there is no seccompProfile"),
    Break(f"{WHOLE} appArmorProfile", UNCONFINED, "AppArmor profile is unconfined"),
    Break(f"{CONTEXT} seLinuxOptions", {"type": "spc_t"}, "seLinuxOptions are"),
    Break(f"{WHOLE} seLinuxOptions", {"user": "root"}, "seLinuxOptions are"),
    Break(f"{WHOLE} windowsOptions", {"hostProcess": True}, "hostProcess is set"),
    Break(f"{TRAIN} ports", [{"containerPort": 29500, "hostPort": 29500}], "hostPort 29500"),
    Break(f"{TRAIN} readinessProbe httpGet host", "10.0.0.1", "asks another host", "Deployment slipway-tensorboard"),
    Break(f"{CONTEXT} readOnlyRootFilesystem", False, "root file system can be written to"),
    Break(f"{POD} automountServiceAccountToken", GONE, "automountServiceAccountToken is not false"),
    Break(f"{POD} enableServiceLinks", True, "enableServiceLinks is not false"),
    Break(f"{POD} volumes new", TOKEN, "holds a service-account token"),
    Break(f"{TRAIN} resources limits {GPU}", 8, f"requests and limits of {GPU} differ"),
    Break(f"{TRAIN} resources requests {GPU}", GONE, f"requests and limits of {GPU} differ"),
    Break(f"{TRAIN} resources limits {RDMA}", GONE, f"requests and limits of {RDMA} differ", folder="overlays/rdma"),
    Break(f"{POD} initContainers", [BARE], "container wait: allowPrivilegeEscalation"),
    Break(f"{CONTEXT} runAsUser", 0, "runAsUser is 0", "Deployment slipway-tensorboard"),
    Break(f"{CONTEXT} runAsUser", 0, "runAsUser is 0", "Job slipway-download", "overlays/download"),
    Break(f"{ROW} hostNetwork", True, "hostNetwork is set", "JobSet slipway", "jobset"),
    Break(f"{RUNTIME} hostNetwork", True, "hostNetwork is set", "ClusterTrainingRuntime slipway", "trainer"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_what_a_pod_must_not_do_is_found(case: Break) -> None:
    found = broken(case)
    assert any(case.finding in text for text in found), found


PRINTED = sorted({command for workload in WORKLOADS.values() for command in workload.next})


@pytest.mark.parametrize("command", PRINTED)
def test_a_pod_that_is_printed_to_type_next_is_admitted(command: str) -> None:
    filled = fill_in(command, "/checkpoints/mine", 40, [])
    words = shlex.split(as_typed(filled, Invocation("kubernetes", "", "slipway:2")))
    if words[:2] == ["kubectl", "run"]:
        container = run_pod(words[2:])["spec"]["containers"][0]
        assert container["args"] == shlex.split(filled)[1:]
