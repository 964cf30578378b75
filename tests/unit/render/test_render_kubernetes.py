"""`slipway render k8s`, `jobset` and `trainer`: the files of k8s/ with what was asked for, and nothing that cannot work.

What is kept of it is written anew by `RENEW_GOLDEN=1 .venv/bin/pytest tests/unit/render/test_render_kubernetes.py`.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from stand_ins import Answer, Slipway

from slipway.protocol.errors import CONFIGURATION
from slipway.render.manifests import NAME_LENGTH, merged

ROOT = Path(__file__).parents[3]
RENEW = bool(os.environ.get("RENEW_GOLDEN"))
IMAGE = "registry.example/team/slipway:0.2.1"
KEPT = {
    "k8s/job.yaml": ["k8s"],
    "k8s/jobset/jobset.yaml": ["jobset", "--nodes", "2"],
    "k8s/trainer/trainer.yaml": ["trainer", "--nodes", "2"],
    "tests/unit/render/golden/four-nodes.yaml": [
        *("k8s", "--nodes", "4", "--gpus", "8", "--name", "big", "--image", IMAGE, "--time", "1-12", "--queue", "research"),
        *("--with", "pvc", "--with", "gpu", "--mem-per-gpu", "100Gi", "--grace-seconds", "300", "--check"),
        *("gpt", "--preset", "small", "--steps", "1000", "--sample-prompt", "it's $HOME"),
    ],
}  # fmt: skip
NASTY = [
    "a b",
    "it's",
    '"',
    "$HOME",
    "$(NNODES)",
    "$$",
    "$$(X)",
    "a$",
    "",
    "\\",
    "a\nb: c",
    "#",
    "ü",
    "-",
    "*x",
    "yes",
    "1e3",
]


@pytest.fixture
def render(slipway: Slipway) -> Slipway:
    """Calls `slipway render …` in an empty folder."""

    def call(*words: str, **environ: str) -> Answer:
        return slipway("render", *words, **environ)

    return call


def rendered(answer: Answer) -> dict[str, dict[str, Any]]:
    """The documents by their kinds; those of TensorBoard have its name in front."""
    assert (answer.code, answer.err) == (0, "")
    documents = {}
    for document in yaml.safe_load_all(answer.out):
        beside = "tensorboard " if document["metadata"]["name"].endswith("tensorboard") else ""
        documents[beside + document["kind"]] = document
    assert answer.out.count("\nkind: ") == len(documents)
    return documents


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return dict(only)


def environment(job: dict[str, Any]) -> dict[str, Any]:
    entries = container(job)["env"]
    names = [entry["name"] for entry in entries]
    assert len(names) == len(set(names))
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}


@pytest.mark.parametrize("path", KEPT)
def test_what_is_kept_in_files_is_what_is_printed(render: Slipway, path: str) -> None:
    answer = render(*KEPT[path])
    assert answer.code == 0, answer.err
    if RENEW:
        (ROOT / path).write_text(answer.out)
    assert answer.out == (ROOT / path).read_text()


def test_the_number_of_nodes_reaches_all_that_depend_on_it(render: Slipway) -> None:
    job = rendered(render("k8s", "--nodes", "5"))["Job"]
    assert [job["spec"][name] for name in ("completions", "parallelism")] == [5, 5]
    assert [job["spec"].get(name) for name in ("backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes")] == [
        None,
        3,
        0,
    ]
    assert environment(job)["NNODES"] == "5"
    assert "Service" not in rendered(render("k8s", "--nodes", "1"))


def test_gpus_bring_cores_and_memory(render: Slipway) -> None:
    resources = container(
        rendered(render("k8s", "--gpus", "2", "--cpus-per-gpu", "3", "--mem-per-gpu", "900Mi"))["Job"]
    )["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": 2}
    assert resources["requests"] == {"nvidia.com/gpu": 2, "cpu": 6, "memory": "1800Mi"}
    assert environment(rendered(render("k8s"))["Job"])["NPROC_PER_NODE"] == "gpu"
    none = container(rendered(render("k8s", "--gpus", "0"))["Job"])
    assert "NPROC_PER_NODE" not in str(none)
    assert "nvidia.com/gpu" not in str(none["resources"])
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in none["env"]


@pytest.mark.parametrize("kind", ["k8s", "jobset", "trainer"])
def test_an_image_without_cuda_takes_no_gpu(render: Slipway, kind: str) -> None:
    image = "registry.example/slipway:1.2.3-cpu"
    asked = render(kind, "--image", image, "--nodes", "2", "gpt")
    assert asked.out == render(kind, "--image", image, "--nodes", "2", "--gpus", "0", "gpt").out
    assert asked.code == 0
    assert "nvidia.com/gpu" not in asked.out
    assert "nvidia.com/gpu" in render(kind, "--image", "slipway:1.2.3-cuda12", "gpt").out


@pytest.mark.parametrize("kind", ["k8s", "jobset", "trainer"])
def test_another_name_leaves_nothing_under_the_old_one(render: Slipway, kind: str) -> None:
    answer = render(kind, "--nodes", "2", "--name", "other")
    for document in rendered(answer).values():
        assert document["metadata"]["name"] == "other"
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "other"
    kept = {"app.kubernetes.io/name: slipway", "image: slipway:dev"}
    others = [line for line in answer.out.splitlines()[1:] if re.search(r"\bslipway\b", line)]
    assert {line.strip() for line in others} <= kept


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a text in args and env (k8s.io/kubernetes/third_party/forked/golang/expansion)."""
    return re.sub(r"\$(?:\$|\((\w+)\))", lambda match: variables.get(match[1], match[0]) if match[1] else "$", text)


@pytest.mark.parametrize("kind", ["k8s", "jobset", "trainer"])
def test_words_and_values_arrive_as_they_were_typed(render: Slipway, kind: str) -> None:
    documents = rendered(render(kind, "--run-dir", "/checkpoints/$(NNODES) it's", "train.py", *NASTY))
    if kind == "trainer":
        told = documents["TrainJob"]["spec"]["trainer"]
    else:
        job = documents["Job"] if kind == "k8s" else documents["JobSet"]["spec"]["replicatedJobs"][0]["template"]
        told = container(job)
    assert [expanded(word, {"NNODES": "1"}) for word in told["args"]] == ["run", "train.py", *NASTY]
    (run,) = [entry["value"] for entry in told["env"] if entry["name"] == "SLIPWAY_RUN_DIR"]
    assert expanded(run, {"NNODES": "1"}) == "/checkpoints/$(NNODES) it's"


def test_options_are_taken_before_and_behind_a_workload_but_not_behind_a_script(render: Slipway) -> None:
    options = ["--nodes", "2", "--gpus", "4", "--image", IMAGE, "--grace_seconds=30", "--time", "9"]
    before = render("k8s", *options, "gpt", "--steps", "5")
    assert rendered(before) == rendered(render("k8s", "gpt", *options, "--steps", "5"))
    assert container(rendered(before)["Job"])["args"] == ["run", "gpt", "--steps", "5"]
    script = rendered(render("k8s", "train.py", *options))["Job"]
    assert container(script)["args"] == ["run", "train.py", *options]


def test_what_a_file_says_becomes_part_of_it_but_for_what_belongs_elsewhere(render: Slipway) -> None:
    Path("cluster.env").write_text(
        "NNODES=3\nWORKLOAD=vision --preset cifar10\nSLIPWAY_GRACE_SECONDS=300\nNCCL_DEBUG=INFO\nTORCH_API_KEY=hunter2hunter2\n"
        "WANDB_API_KEY=hunter2hunter2\nSLURM_STEP_ID=1\n"
        f"SLIPWAY_TOKEN=hunter2hunter2\nHF_TOKEN=hf_hunter2\nCOMPOSE_FILE=compose.yaml\nTENSORBOARD_PORT=1\nIMAGE={IMAGE}\n"
    )
    answer = render("k8s", "--env-file", "cluster.env", SLIPWAY_BACKEND="gloo", NCCL_NET="other")
    job = rendered(Answer(answer.code, answer.out, ""))["Job"]
    told = container(job)
    assert (told["image"], told["args"]) == (IMAGE, ["run", "vision", "--preset", "cifar10"])
    assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 310
    base = environment(rendered(render("k8s"))["Job"])
    assert {name: value for name, value in environment(job).items() if name not in base} == {
        "NCCL_DEBUG": "INFO",
        "SLIPWAY_BACKEND": "gloo",
        "SLIPWAY_GRACE_SECONDS": "300",
        "SLIPWAY_TOKEN": {"secretKeyRef": {"name": "slipway-settings", "key": "SLIPWAY_TOKEN"}},
        "TORCH_API_KEY": {"secretKeyRef": {"name": "slipway-settings", "key": "TORCH_API_KEY"}},
        "SLIPWAY_RENDEZVOUS_TIMEOUT": "3600",
    }
    assert "hunter2" not in answer.out
    secrets = (
        "kubectl create secret generic slipway-settings --from-literal=TORCH_API_KEY=… --from-literal=SLIPWAY_TOKEN=…"
    )
    assert secrets in answer.out
    assert secrets in answer.err


@pytest.mark.parametrize("kind", ["k8s", "jobset", "trainer"])
@pytest.mark.parametrize(
    ("store", "outside"), [("s3://bucket/runs", True), ("AZ://container", True), ("file:///mnt/runs", False)]
)
def test_a_bucket_that_the_pods_may_not_reach_is_named(render: Slipway, kind: str, store: str, outside: bool) -> None:
    answer = render(kind, "--store", store)
    notice = f"The pods cannot reach {store} yet: k8s/README.md has the NetworkPolicy and the Secret for it."
    assert ((notice in answer.out), (notice in answer.err)) == (outside, outside)


def test_what_was_given_beats_what_the_files_say(render: Slipway) -> None:
    job = rendered(render("k8s", "--nodes", "2", "--resume", "/checkpoints/a", "--rendezvous-timeout", "60"))["Job"]
    assert [environment(job)[name] for name in ("SLIPWAY_RESUME", "SLIPWAY_RENDEZVOUS_TIMEOUT")] == [
        "/checkpoints/a",
        "60",
    ]


def test_components_are_added_once_and_in_any_order(render: Slipway) -> None:
    some = rendered(render("k8s", "--with", "tensorboard", "--with", "pvc", "--with", "gpu", "--with", "gpu"))
    assert some == rendered(render("k8s", "--with", "gpu", "--with", "pvc", "--with", "tensorboard"))
    assert some == rendered(render("k8s", "--with", "gpu", "gpt", "--with", "tensorboard")) | {"Job": some["Job"]}
    parts = {f"tensorboard {kind}" for kind in ("Deployment", "Service", "NetworkPolicy")}
    assert set(some) == {"Job", "NetworkPolicy", *parts}


def test_tensorboard_runs_the_same_image(render: Slipway) -> None:
    answer = render("k8s", "--with", "tensorboard", "--image", IMAGE)
    assert answer.out.count(f"image: {IMAGE}\n") == 2
    assert "slipway:dev" not in answer.out


def test_trainer_is_told_the_number_of_processes_in_its_own_way(render: Slipway) -> None:
    told = rendered(render("trainer", "--nproc-per-node", "2"))["TrainJob"]["spec"]["trainer"]
    assert (told["numProcPerNode"], told.get("env")) == (2, None)


@pytest.mark.parametrize(
    ("words", "nccl"),
    [([], True), (["--nproc-per-node", "2"], True), (["--gpus", "0"], False), (["--nproc-per-node", "cpu"], False),
     (["--nproc-per-node", "8", "--oversubscribe"], False)],
    ids=str,
)  # fmt: skip
def test_trainer_does_not_train_without_the_gpus_that_it_asked_for(
    render: Slipway, words: list[str], nccl: bool
) -> None:
    documents = rendered(render("trainer", *words))
    (row,) = documents["ClusterTrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
    assert (environment(row["template"]).get("SLIPWAY_BACKEND") == "nccl") == nccl
    assert "NPROC_PER_NODE" not in environment(row["template"])


def test_tensorboard_is_called_after_its_job(render: Slipway) -> None:
    documents = rendered(render("k8s", "--name", "second", "--with", "tensorboard"))
    beside = [document for kind, document in documents.items() if kind.startswith("tensorboard ")]
    assert {document["metadata"]["name"] for document in beside} == {"second-tensorboard"}
    assert "instance: slipway" not in yaml.safe_dump_all(beside)


def test_a_trainjob_says_what_varies_and_its_runtime_the_rest(render: Slipway) -> None:
    documents = rendered(
        render("trainer", "--nodes", "3", "--gpus", "0", "--check", "--queue", "q", "gpt", "--steps", "9")
    )
    runtime, job = documents["ClusterTrainingRuntime"], documents["TrainJob"]
    assert job["spec"]["trainer"]["numNodes"] == 3
    assert job["spec"]["trainer"]["numProcPerNode"] == 2
    assert job["spec"]["trainer"]["env"] == [{"name": "SLIPWAY_CHECK", "value": "1"}]
    assert (job["metadata"]["labels"].get("kueue.x-k8s.io/queue-name"), "kueue" in str(runtime)) == ("q", False)
    assert "--steps" not in str(runtime)
    assert "NNODES" not in {entry["name"] for entry in job["spec"]["trainer"]["env"]}


MERGES = [
    ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
    ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
    ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    ([{"name": "x", "v": 1}, {"name": "y"}], [{"name": "x", "v": 2}, {"name": "z"}], [{"name": "x", "v": 2}, {"name": "y"}, {"name": "z"}]),
    ([{"name": "x", "e": {}}], [{"name": "x", "e": None, "p": 1}], [{"name": "x", "p": 1}]),
    ([{"mountPath": "/a", "name": "n"}], [{"mountPath": "/b", "name": "n"}], [{"mountPath": "/a", "name": "n"}, {"mountPath": "/b", "name": "n"}]),
    ([{"key": "x"}], [{"key": "y"}], [{"key": "y"}]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "patch", "both"), MERGES)
def test_patches_are_merged_as_kubernetes_does(base: Any, patch: Any, both: Any) -> None:
    assert merged(base, patch) == both


LONGEST = {
    "k8s": NAME_LENGTH - len("-0"),
    "jobset": NAME_LENGTH - len("-node-0-0-abcde"),
    "trainer": NAME_LENGTH - len("-node-0-0-abcde"),
}


@pytest.mark.parametrize("kind", LONGEST)
def test_names_are_as_long_as_host_names_allow(render: Slipway, kind: str) -> None:
    longest = "x" * LONGEST[kind]
    assert render(kind, "--name", longest).code == 0
    assert render(kind, "--name", "x" * 52, "--with", "tensorboard").code == 78
    for words in (["--name", f"{longest}x"], ["--name", longest, "--nodes", "11"]):
        answer = render(kind, *words)
        assert (answer.code, answer.out) == (78, "")
        assert "characters" in answer.err


REFUSED = [
    (["--topology", "cloud.provider.com/topology-rack"], {}, 78, "Add --queue NAME"),
    (["--topology", "a rack", "--queue", "q"], {}, 2, "type the name of a label"),
    (["--nodes", "2"], {"NNODES": "4"}, 78, "WORLD_SIZE=4 (from environment (NNODES))"),
    (["--image", "slipway:dev-cpu", "--gpus", "2"], {}, 78, "Leave --gpus out"),
    (["--image", "slipway:dev-cpu", "--with", "rdma"], {}, 78, "or the image cpu"),
    (["--image", "slipway:cpu"], {}, 78, "as in 1.2.3-cpu"),
    (["--gpus", "-1"], {}, 2, "--gpus"),
    (["--resume", "none"], {}, 78, "another --name"),
    (["--gpus", "0", "--cpus-per-gpu", "4"], {}, 2, "--gpus N"),
    (["--mem-per-gpu", "4Gi"], {}, 2, "--gpus N"),
    (["--gpus", "2", "--mem-per-gpu", "4 GB"], {}, 2, "64Gi"),
    (["--gpus", "2", "--mem-per-gpu", "64K"], {}, 2, "64Gi"),
    (["--nproc-per-node", "5"], {}, 78, "--gpus 4"),
    (["--image", "slipway"], {}, 78, "no tag"),
    (["--image", "slipway:latest"], {}, 78, "latest"),
    (["--image", "Team/slipway:1"], {}, 78, "not the name of an image"),
    ([], {"IMAGE": "slipway"}, 78, "IMAGE=slipway (from the environment): "),
    (["--name", "Big"], {}, 78, "small letters"),
    (["--name", "1big"], {}, 78, "a letter first"),
    (["--name", "big-"], {}, 78, "small letters"),
    (["--queue", "Big_Q"], {}, 2, "--queue"),
    (["--gpus", "0", "--with", "gpu"], {}, 78, "--gpus 0"),
    (["--gpus", "0", "--with", "rdma"], {}, 78, "--with rdma"),
    (["--gpus", "0", "--backend", "nccl"], {}, 78, "--backend nccl"),
    (["--gpus", "0", "--nproc-per-node", "gpu"], {}, 78, "--nproc-per-node gpu"),
    (["--with", "cpu"], {}, 2, "--with"),
    (["--time", "4h"], {}, 2, "DAYS-HOURS"),
    (["--time", "0"], {}, 78, "--time"),
    (["--runs", "runs"], {}, 78, "/checkpoints"),
    (["--runs", "/checkpointsx"], {}, 78, "/checkpoints"),
    (["train.py", os.fsdecode(b"\xff")], {}, 78, "UTF-8"),
]  # fmt: skip


def test_a_setting_that_does_not_exist_is_refused(render: Slipway) -> None:
    Path(".env").write_text("SLIPWAY_TYPO=1\n")
    answer = render("k8s")
    assert (answer.code, answer.out) == (78, "")
    assert ".env, line 1: there is no setting SLIPWAY_TYPO." in answer.err


@pytest.mark.parametrize("kind", ["k8s", "jobset", "trainer"])
@pytest.mark.parametrize(("words", "environ", "code", "says"), REFUSED, ids=[repr(row[0] or row[1]) for row in REFUSED])
def test_what_cannot_work_is_refused(
    render: Slipway, kind: str, words: list[str], environ: dict[str, str], code: int, says: str
) -> None:
    answer = render(kind, *words, **environ)
    assert (answer.code, answer.out) == (code, ""), answer.err
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("words", [["--nodes", "4+2"], ["--nodes", "4", "--spares", "2"]])
def test_spare_nodes_are_pods_that_do_not_keep_the_job_open(render: Slipway, words: list[str]) -> None:
    job = rendered(render("k8s", *words))["Job"]
    assert [job["spec"][name] for name in ("completions", "parallelism")] == [6, 6]
    assert job["spec"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}, "a spare node 0 has the job's code"
    assert job["spec"]["maxFailedIndexes"] == 2
    assert environment(job)["NNODES"] == "4+2"
    assert "SLIPWAY_SPARES" not in environment(job)
    spec = rendered(render("jobset", *words))["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (spec["completions"], spec["successPolicy"]) == (6, job["spec"]["successPolicy"])


def test_trainer_counts_spare_nodes_among_its_own(render: Slipway) -> None:
    documents = rendered(render("trainer", "--nodes", "4+2"))
    runtime = documents["ClusterTrainingRuntime"]["spec"]
    assert (runtime["mlPolicy"]["numNodes"], documents["TrainJob"]["spec"]["trainer"]["numNodes"]) == (6, 6)
    (node,) = runtime["template"]["spec"]["replicatedJobs"]
    (one,) = node["template"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "SLIPWAY_SPARES", "value": "2"} in one["env"]


def test_an_elastic_job_is_a_job_of_all_its_pods_that_continues_without_some(render: Slipway) -> None:
    job = rendered(render("k8s", "--nodes", "2:4"))["Job"]
    assert environment(job)["NNODES"] == "2:4"
    assert [job["spec"][name] for name in ("completions", "parallelism", "maxFailedIndexes")] == [4, 4, 2]
    assert "annotations" not in job["metadata"]
    assert rendered(render("k8s", NNODES="2:4"))["Job"] == job
    assert render("k8s", "--nodes", "4:4").out == render("k8s", "--nodes", "4").out
    queued = rendered(render("k8s", "--nodes", "2:4", "--queue", "research"))["Job"]
    assert queued["metadata"]["annotations"] == {
        "kueue.x-k8s.io/job-min-parallelism": "2",
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }


@pytest.mark.parametrize("kind", ["jobset", "trainer"])
def test_operators_take_no_elastic_job(render: Slipway, kind: str) -> None:
    answer = render(kind, "--nodes", "2:4")
    assert (answer.code, answer.out) == (CONFIGURATION, "")
    assert "--nodes 4" in answer.err


@pytest.mark.parametrize("kind", ["k8s", "jobset", "trainer"])
def test_kueue_is_told_where_the_pods_had_better_be(render: Slipway, kind: str) -> None:
    rack = "cloud.provider.com/topology-rack"
    asked = render(kind, "--nodes", "2", "--queue", "research", "--topology", rack).out
    plain = render(kind, "--nodes", "2", "--queue", "research").out
    added = [line.strip() for line in asked.splitlines() if line not in plain.splitlines()]
    assert added == ["annotations:", f"kueue.x-k8s.io/podset-preferred-topology: {rack}"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--spares", "1"], "at least two nodes"),
        (["--nodes", "2:4", "--spares", "1"], "an elastic job needs none"),
        (["--nodes", "1+1"], "at least two nodes"),
        (["--nodes", "2:4+1"], "elastic"),
        (["--nodes", "2+1", "--spares", "2"], "Leave one of them out"),
    ],
)
def test_spare_nodes_that_cannot_be_are_refused(render: Slipway, words: list[str], says: str) -> None:
    answer = render("k8s", *words)
    assert (answer.code, answer.out) == (CONFIGURATION, "")
    assert says in answer.err
