"""`slipway render slurm`: the same file as in the checkout, with what was asked for, and nothing that cannot work.

How files of other kinds differ from it is written anew by `RENEW_GOLDEN=1 .venv/bin/pytest tests/unit/render/test_render_slurm.py`.
"""

import os
import re
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest
from stand_ins import Answer, Slipway

from slipway.launch.resolve.settings import BY_NAME
from slipway.render.request import read_time
from slipway.render.slurm import LEAVING

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"
RENEW = bool(os.environ.get("RENEW_GOLDEN"))
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
IMAGE = "registry.example/team/slipway:0.2.1"
ENV_FILE = """\
WORLD_SIZE=2
WORKLOAD=vision --preset cifar10
SLIPWAY_GRACE_SECONDS=300
SLIPWAY_RUNS=/shared/all runs
SLIPWAY_TOKEN=hunter2hunter2
HF_HOME=/data/huggingface
"""
CASES = {
    "default": [],
    "four-nodes": [
        *("--nodes", "4", "--gpus", "8", "--time", "1-12", "--partition", "a100,h100", "--account", "team", "--job-name", "big"),
        *("--image", IMAGE, "gpt", "--preset", "small", "--steps", "1000", "--sample-prompt", "it's"),
    ],
    "venv": ["--venv", "/shared/my venv", "--nproc-per-node", "4", "-m", "my.package", "--flag"],
    "env-file": ["--env-file", "cluster.env", "--max-restarts", "5"],
    "spare-node": ["--nodes", "2+1", "gpt"],
}  # fmt: skip


@pytest.fixture
def render(slipway: Slipway) -> Slipway:
    """Calls `slipway render slurm` in an empty folder."""

    def call(*words: str, **environ: str) -> Answer:
        return slipway("render", "slurm", *words, **environ)

    return call


def rendered(answer: Answer) -> str:
    assert (answer.code, answer.err) == (0, "")
    return answer.out


def difference(text: str) -> str:
    """How a file differs from that of the checkout, by which it can be made of it."""
    ours = (ROOT / "slurm/train.sbatch").read_text()
    return "".join([*unified_diff(ours.splitlines(keepends=True), text.splitlines(keepends=True), n=0)][2:])


def headers(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_file_is_as_it_was_approved(render: Slipway, case: str) -> None:
    Path("cluster.env").write_text(ENV_FILE)
    text = rendered(render(*CASES[case]))
    differs = difference(text)
    golden = GOLDEN / f"{case}.diff"
    if RENEW and differs:
        golden.write_text(differs)
    assert differs == ("" if case == "default" else golden.read_text())
    for checker in (["bash", "-n"], [str(SHELLCHECK), "--shell=bash"]):
        checked = subprocess.run([*checker, "/dev/stdin"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize("case", CASES)
def test_all_but_headers_and_settings_stays_the_file_of_the_checkout(render: Slipway, case: str) -> None:
    Path("cluster.env").write_text(ENV_FILE)
    text = rendered(render(*CASES[case]))
    template = (ROOT / "slurm/train.sbatch").read_text().partition("set -euo pipefail\n")
    assert text.endswith(template[2])
    assert text.startswith(template[0].partition("#SBATCH")[0])


SRUN = """#!/bin/bash
if [[ "$1" == --help ]]; then echo --container-image; exit; fi
printf '%s\\0' "$@" >"$STUB/words"
env --null >"$STUB/environment"
"""


def submit(text: str, folder: Path, *words: str, **environ: str) -> tuple[list[str], dict[str, str]]:
    """Run a file as Slurm would. Returns what srun was told, and in which environment."""
    stub = folder / "stub"
    stub.mkdir()
    for name in ("srun", "slipway"):
        (stub / name).write_text(SRUN)
        (stub / name).chmod(0o755)
    (stub / "scontrol").write_text("#!/bin/sh\necho JobId=7 Restarts=0\n")
    (stub / "scontrol").chmod(0o755)
    slurm = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": "7"}
    variables = {"PATH": f"{stub}:{os.environ['PATH']}", "STUB": str(stub), **slurm, **environ}
    subprocess.run(["bash", "-s", "--", *words], input=os.fsencode(text), env=variables, cwd=folder, check=True)
    told = (stub / "words").read_bytes()[:-1].split(b"\0")
    left = [line.partition(b"=") for line in (stub / "environment").read_bytes()[:-1].split(b"\0")]
    return [os.fsdecode(word) for word in told], {os.fsdecode(name): os.fsdecode(value) for name, _, value in left}


NASTY = [
    "a b",
    "it's",
    '"',
    "$HOME",
    "`id`",
    "$(id)",
    "*",
    "",
    "\\",
    "a\nb",
    "\n#SBATCH --nodes=9",
    "!x",
    "~",
    "#",
    "ü",
    "-",
]


def test_words_and_values_reach_the_launcher_as_they_were_typed(render: Slipway, tmp_path: Path) -> None:
    Path("my script.py").touch()
    nasty = "/runs/it's $HOME `id`\n#SBATCH --nodes=9"
    text = rendered(render("--image", IMAGE, "--run-dir", nasty, "--runs", f"{tmp_path}/a 'b'", "my script.py", *NASTY))
    assert "#SBATCH --nodes=9" not in text.partition("set -euo pipefail")[0]
    words, environ = submit(text, tmp_path, "more words", VENV="/other", IMAGE="other", SLIPWAY_RUN_DIR="/other")
    assert words[-len(NASTY) - 3 :] == ["run", "my script.py", *NASTY, "more words"]
    assert "--container-image=registry.example#team/slipway:0.2.1" in words
    assert (environ["SLIPWAY_RUN_DIR"], environ["SLIPWAY_RUNS"]) == (nasty, "/checkpoints")
    assert f":/workspace,{tmp_path}/a 'b':/checkpoints," in next(word for word in words if "mounts" in word)


def test_bytes_that_are_no_text_go_through() -> None:
    code = "from slipway.render import render; render()"
    command = [sys.executable, "-c", code, "slurm", "gpt", "--run-dir", os.fsdecode(b"/\xff")]
    strict = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8:strict"}
    shown = subprocess.run(command, capture_output=True, check=True, env=strict).stdout
    assert b"export SLIPWAY_RUN_DIR='/\xff'\n" in shown


def test_a_virtual_environment_needs_no_container(render: Slipway, tmp_path: Path) -> None:
    venv = tmp_path / "my venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/slipway").symlink_to(tmp_path / "stub/slipway")
    text = rendered(render("--venv", str(venv), "--runs", str(tmp_path / "r"), "gpt"))
    words, environ = submit(text, tmp_path, IMAGE="other")
    assert words[-3:] == [str(venv / "bin/slipway"), "run", "gpt"]
    assert [word for word in words if "container" in word] == []
    assert environ["SLIPWAY_RUNS"] == str(tmp_path / "r")


def test_options_are_taken_before_and_behind_a_workload(render: Slipway) -> None:
    options = ["--nodes", "2", "--gpus", "4", "--image", IMAGE, "--grace_seconds=30", "--oversubscribe", "--time", "9"]
    before = rendered(render(*options, "gpt", "--steps", "5"))
    assert rendered(render("gpt", *options, "--steps", "5")) == before
    assert {"nodes=2", "gpus-per-node=4", "time=9", "signal=USR1@70"} <= set(headers(before))
    assert 'set -- gpt --steps 5 "$@"' in before


def test_everything_behind_a_script_is_the_scripts_own(render: Slipway) -> None:
    Path("train.py").touch()
    text = rendered(render("train.py", "--nodes", "7", "--image", "x", "--time", "y"))
    assert 'set -- train.py --nodes 7 --image x --time y "$@"' in text
    assert "nodes=1" in headers(text)


@pytest.mark.parametrize("environ", [{"WORLD_SIZE": "3"}, {"NNODES": "3"}, {}])
@pytest.mark.parametrize("name", ["WORLD_SIZE", "NNODES"])
def test_the_number_of_nodes_may_come_from_a_file_or_the_environment(
    render: Slipway, name: str, environ: dict[str, str]
) -> None:
    Path(".env").write_text(f"{name}=3\n")
    assert "nodes=3" in headers(rendered(render(**environ)))
    assert "nodes=3" in headers(rendered(render("--nodes", "3", "--nnodes", "3", **environ)))


def test_only_what_was_given_is_set(render: Slipway) -> None:
    text = rendered(render("--resume", "none", "--check", SLIPWAY_BACKEND="gloo", HF_TOKEN="hunter2", IMAGE="x"))
    assert re.findall("(?m)^export .*", text.partition("SHARED=")[0]) == [
        "export SLIPWAY_BACKEND=gloo",
        "export SLIPWAY_RESUME=none",
        "export SLIPWAY_CHECK=1",
    ]
    assert "hunter2" not in text


def test_secrets_are_named_but_not_written_down(render: Slipway) -> None:
    text = rendered(render(SLIPWAY_TOKEN="hunter2hunter2"))
    assert "hunter2" not in text
    assert "# SLIPWAY_TOKEN is a secret" in text


def test_the_signal_leaves_the_grace_and_time_to_leave(render: Slipway) -> None:
    default = int(BY_NAME["SLIPWAY_GRACE_SECONDS"].default)
    assert f"signal=USR1@{default + LEAVING}" in headers(rendered(render()))
    for given in ({"SLIPWAY_GRACE_SECONDS": "300"}, {}):
        text = rendered(render(*([] if given else ["--grace-seconds", "300"]), **given))
        assert "signal=USR1@340" in headers(text)
        assert "export SLIPWAY_GRACE_SECONDS=300\n" in text


def test_gpus_that_are_counted_bring_cores_and_memory(render: Slipway) -> None:
    shared = headers(rendered(render("--gpus", "2")))
    assert [line for line in shared if "gpu" in line] == ["gpus-per-node=2", "cpus-per-gpu=8", "mem-per-gpu=32G"]
    assert not {"exclusive", "mem=0"} & set(shared)
    chosen = headers(rendered(render("--gpus", "2", "--cpus-per-gpu", "3", "--mem-per-gpu", "900M")))
    assert {"cpus-per-gpu=3", "mem-per-gpu=900M"} <= set(chosen)


@pytest.mark.parametrize("name", [".env", "sub/job.env"])
def test_the_job_reads_a_file_that_was_named(render: Slipway, tmp_path: Path, name: str) -> None:
    Path("sub").mkdir()
    Path(name).write_text("SLIPWAY_BACKEND=gloo\n")
    for typed in (name, f"sub/../{name}", str(tmp_path / name)):
        assert f'set -- --env-file {name} gpt "$@"' in rendered(render("--env-file", typed, "gpt"))


def test_outside_a_container_it_may_lie_anywhere(render: Slipway, tmp_path: Path) -> None:
    file = tmp_path.parent / f"{tmp_path.name}.env"
    file.write_text("SLIPWAY_BACKEND=gloo\n")
    assert f'set -- --env-file {file} "$@"' in rendered(render("--venv", "/v", "--env-file", f"../{file.name}"))
    answer = render("--env-file", f"../{file.name}")
    assert answer.code == 78
    assert "Copy it there" in answer.err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("4:00:00", 14_400),
        ("2-12", 216_000),
        ("1-0:30", 88_200),
        ("1-01:02:03", 90_123),
    ],
)
def test_slurms_times_are_understood(text: str, seconds: int) -> None:
    assert read_time(text) == seconds


REFUSED = [
    (["--nodes", "two"], {}, 78, "whole number"),
    (["--nnodes", "0"], {}, 78, "1 to 65536"),
    (["--nodes", "2:4"], {}, 78, "--nodes 4"),
    ([], {"PET_NNODES": "2", "WORLD_SIZE": "1:2"}, 78, "--nodes 2"),
    (["--nodes", "2", "--nnodes", "4"], {}, 78, "--nnodes 4"),
    (["--nodes", "2"], {"NNODES": "4"}, 78, "WORLD_SIZE=4 (from environment (NNODES))"),
    ([], {"WORLD_SIZE": "2", "NNODES": "4"}, 78, "Make them equal"),
    (["--master-addr", "a"], {}, 78, "--master-addr a"),
    (["--master-port", "1"], {}, 78, "--master-port 1"),
    (["--image", "dockerd://slipway:dev-cpu", "--gpus", "2"], {}, 78, "Leave --gpus out"),
    (["--image", "/shared/slipway-1.2.3-cpu.sqsh", "--gpus", "2"], {}, 78, "Leave --gpus out"),
    (["--image", "dockerd://slipway:cpu"], {}, 78, "as in 1.2.3-cpu"),
    (["--gpus", "0"], {}, 2, "--gpus"),
    (["--cpus-per-gpu", "4"], {}, 2, "--gpus N"),
    (["--mem-per-gpu", "4G"], {}, 2, "--gpus N"),
    (["--gpus", "2", "--mem-per-gpu", "4 GB"], {}, 2, "64G"),
    (["--nproc-per-node", "none"], {}, 78, "--nproc-per-node none"),
    (["--venv", "/v", "--image", IMAGE], {}, 2, "one of them"),
    (["--venv", ".venv"], {}, 2, "absolute"),
    (["--image", "slipway:dev", "gpt"], {}, 78, "dockerd://slipway:dev"),
    (["--runs", "runs"], {}, 78, "absolute"),
    (["--runs", "/a:/b,c"], {}, 78, "colon"),
    (["--time", "4h"], {}, 2, "DAYS-HOURS"),
    (["--time", "1:2:3:4"], {}, 2, "no time"),
    (["--time", "10\n#SBATCH"], {}, 2, "no time"),
    (["--time", "٣"], {}, 2, "no time"),
    (["--time", "3"], {}, 78, "--grace-seconds"),
    (["--time", "0"], {}, 78, "longer --time"),
    (["--grace-seconds", "14400"], {}, 78, "04:00:00"),
    (["--grace-seconds", "80000", "--time", "9-0"], {}, 78, "65495"),
    (["--partition", "a b"], {}, 2, "--partition"),
    (["--account", "x\n#SBATCH --nodes=9"], {}, 2, "--account"),
    (["--job-name", "it's"], {}, 2, "--job-name"),
    (["--job-name", "%j/x"], {}, 2, "--job-name"),
    (["--job-name", "größe"], {}, 2, "--job-name"),
    (["absent.py"], {}, 78, "There is no file absent.py"),
    ([], {"WORKLOAD": "lniear"}, 78, "Did you mean linear?"),
    (["linear", "--steps", "1", "--epochs", "1"], {}, 2, "Error: "),
]  # fmt: skip


@pytest.mark.parametrize(("words", "environ", "code", "says"), REFUSED, ids=[repr(row[0] or row[1]) for row in REFUSED])
def test_what_cannot_work_is_refused(
    render: Slipway, words: list[str], environ: dict[str, str], code: int, says: str
) -> None:
    answer = render(*words, **environ)
    assert (answer.code, answer.out) == (code, ""), answer.err
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("name", ["RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_file_for_one_node_is_refused(render: Slipway, name: str) -> None:
    Path(".env").write_text(f"{name}=1\n")
    answer = render("gpt")
    assert answer.code == 78
    assert f"(from .env{f' ({name})' if name == 'NODE_RANK' else ''})" in answer.err


def test_the_help_tells_the_defaults_of_the_headers(render: Slipway) -> None:
    text = " ".join(render("--help").out.split())
    defaults = dict(re.findall(r"--(job-name|time) [A-Z]+ .*?\[default (\S+)\]", text))
    assert set(defaults) == {"job-name", "time"}
    assert {f"{name}={value}" for name, value in defaults.items()} <= set(headers(rendered(render())))
    assert not {"--node-rank", "--master-addr", "--standalone"} & set(text.split())


def test_every_early_signal_in_the_guide_leaves_time_for_the_grace_beside_it() -> None:
    guide = (Path(__file__).parents[3] / "slurm/README.md").read_text()
    pairs = re.findall(r"SLIPWAY_GRACE_SECONDS=(\d+) sbatch --signal=USR1@(\d+)", guide)
    assert len(pairs) == guide.count("sbatch --signal=USR1@") == 3
    assert [pair for pair in pairs if int(pair[1]) < int(pair[0]) + LEAVING] == []
