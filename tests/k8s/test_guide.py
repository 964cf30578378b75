"""The overlay that k8s/README.md shows does what it says, and its table tells of every exit code."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from job_rules import ACTIONS
from kubectl import K8S, kustomize, read_documents
from schemas import violations
from semantics import findings
from templates import of_kind

from slipway.protocol.errors import EXITS

pytestmark = pytest.mark.pull

README = (K8S / "README.md").read_text(encoding="utf-8")
SAID = {"FailJob": "Failed, at once", "Ignore": "replaces the pod, not counted"}


def test_the_overlay_of_the_guide_is_well(tmp_path: Path) -> None:
    mine = shutil.copytree(K8S, tmp_path / "k8s") / "overlays/mine"
    mine.mkdir()
    for name, text in re.findall(r"```yaml\n# (\w+\.yaml)(.*?)```", README, re.DOTALL):
        (mine / name).write_text(f"#{text}")
    documents = read_documents(kustomize(mine))
    assert findings(documents) == []
    [job] = of_kind(documents, "Job")
    assert (job["metadata"]["namespace"], job["spec"]["completions"]) == ("research", 4)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/team/slipway:1.2.3-cuda12"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/hca_shared_devices_a": 1}


def test_the_policy_for_a_bucket_lets_the_pods_of_the_job_out() -> None:
    [block] = re.findall(r"```yaml\n(apiVersion: networking.*?)```", README, re.DOTALL)
    policy = yaml.safe_load(block)
    assert violations(policy) == []
    [base] = yaml.safe_load_all((K8S / "base/single/networkpolicy.yaml").read_text(encoding="utf-8"))
    assert policy["spec"]["podSelector"] == base["spec"]["podSelector"]
    ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]
    assert ports == [443, 80], "the bucket, and the metadata service"


def test_the_script_of_the_guide_comes_out_of_a_config_map(tmp_path: Path) -> None:
    [block] = re.findall(r"```yaml\n(containers:.*?)```", README, re.DOTALL)
    mine = shutil.copytree(K8S, tmp_path / "k8s") / "overlays/mine"
    mine.mkdir()
    patch = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "slipway"},
        "spec": {"template": {"spec": yaml.safe_load(block)}},
    }
    (mine / "job.yaml").write_text(yaml.safe_dump(patch))
    overlay = {"resources": ["../../base/multi"], "patches": [{"path": "job.yaml"}]}
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    documents = read_documents(kustomize(mine))
    [job] = of_kind(documents, "Job")
    assert findings(documents) == []
    assert violations(job) == []
    [container] = job["spec"]["template"]["spec"]["containers"]
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"] == ["run", "train.py"]
    assert places.keys() == {"script", "shm", "tmp", "checkpoints", "data"}, "what the base mounts is still there"
    assert places["script"] == "/workspace"


def test_the_check_of_a_node_fits_into_the_pod() -> None:
    page = (K8S.parent / "docs/check.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(initContainers:.*?)```", page, re.DOTALL)
    documents = read_documents(kustomize(K8S / "base/single"))
    [job] = of_kind(documents, "Job")
    job["spec"]["template"]["spec"] |= yaml.safe_load(block)
    assert findings(documents) == []
    assert violations(job) == []


def test_the_guide_says_what_the_job_makes_of_each_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", README, re.MULTILINE)
    told = {int(code): (meaning, then) for code, meaning, then in rows}
    assert set(told) == {*EXITS, 137}
    for code, row in EXITS.items():
        meaning, then = told[code]
        counted = "replaces the pod, counted" if code else "Complete"
        assert meaning == row.meaning
        assert then.startswith(SAID.get(ACTIONS.get(row.then, ""), counted))
