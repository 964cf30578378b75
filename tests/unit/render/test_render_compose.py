"""`slipway render compose`: compose/compose.yaml with what was asked for, and nothing that cannot work."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from stand_ins import Answer, Slipway

from slipway.launch.resolve.next_lines import compose_project
from slipway.launch.resolve.settings import BY_NAME

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())
DIGEST = f"@sha256:{'0' * 64}"


@pytest.fixture
def render(slipway: Slipway) -> Slipway:
    """Calls `slipway render compose` in an empty folder."""

    def call(*words: str, **environ: str) -> Answer:
        return slipway("render", "compose", *words, **environ)

    return call


def rendered(answer: Answer) -> dict[str, Any]:
    assert (answer.code, answer.err) == (0, "")
    file: dict[str, Any] = yaml.safe_load(answer.out)
    return file


def training(answer: Answer) -> dict[str, Any]:
    service: dict[str, Any] = rendered(answer)["services"]["train"]
    return service


def test_without_options_it_is_the_file_of_the_checkout_written_out(render: Slipway) -> None:
    file, template = rendered(render()), {key: value for key, value in COMPOSE.items() if key != "x-locked"}
    assert list(file) == list(template)
    assert file["services"].pop("tensorboard") == template["services"]["tensorboard"] | {"image": "slipway:dev"}
    was, now = template["services"]["train"], file["services"]["train"]
    changed = {
        "image": "slipway:dev",
        "command": ["run"],
        "environment": {"COMPOSE_SERVICE": "train", "SLIPWAY_RESUME": "auto"},
    }
    assert now == was | changed | {"env_file": [{"path": ".env", "required": False}]}
    assert (file["name"], file["volumes"]) == (template["name"], template["volumes"])


def test_all_is_written_out_but_for_tensorboards_port(render: Slipway) -> None:
    text = render("--image", "a:1", "gpt").out
    assert "&" not in text, "an anchor of YAML"
    assert set(re.findall(r"\$\{?\w*", text)) == {"${TENSORBOARD_PORT"}


def test_it_passes_our_own_linter_and_says_what_made_it(render: Slipway) -> None:
    words = ["--gpus", "2", "gpt", "--preset", "small", "--sample-prompt", "it's"]
    text = render(*words).out
    assert text.startswith(
        "# Made by: slipway render compose --gpus 2 gpt --preset small --sample-prompt 'it'\"'\"'s'\n"
    )
    lint = [str(Path(sys.executable).with_name("yamllint")), "--strict", "-"]
    checked = subprocess.run(lint, input=text, capture_output=True, text=True, cwd=ROOT)
    assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.parametrize(
    ("words", "environ", "image"),
    [
        ([], {}, "slipway:dev"),
        ([], {"IMAGE": "team/slipway:1"}, "team/slipway:1"),
        (["--image", "registry:5000/a/slipway:0.2.1"], {"IMAGE": "b:1"}, "registry:5000/a/slipway:0.2.1"),
        (["--image", f"slipway{DIGEST}"], {}, f"slipway{DIGEST}"),
    ],
)
def test_both_services_have_the_image(render: Slipway, words: list[str], environ: dict[str, str], image: str) -> None:
    services = rendered(render(*words, **environ))["services"]
    assert {service["image"] for service in services.values()} == {image}


@pytest.mark.parametrize(("words", "count"), [([], "all"), (["--gpus", "2"], 2), (["--gpus", "0"], None)])
def test_as_many_gpus_are_taken_as_were_asked_for(render: Slipway, words: list[str], count: int | str | None) -> None:
    for service in (training(render(*words, "gpt")), training(render("gpt", *words))):
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        assert [device["count"] for device in devices] == ([count] if count else [])
        assert service["environment"].get("NVIDIA_VISIBLE_DEVICES") == (None if count else "void")


def test_an_image_without_cuda_takes_no_gpu(render: Slipway) -> None:
    for service in (training(render("--image", "a:1.2-cpu")), training(render(IMAGE="slipway:dev-cpu"))):
        assert "deploy" not in service
        assert service["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "deploy" in training(render("--image", "a:1.2-cuda12"))


def test_options_are_taken_before_and_behind_a_workload(render: Slipway) -> None:
    options = ["--gpus", "2", "--image", "a:1", "--name", "mine", "--grace_seconds=30", "--oversubscribe"]
    before, behind = (
        rendered(render(*options, "gpt", "--steps", "5")),
        rendered(render("gpt", *options, "--steps", "5")),
    )
    assert before == behind
    assert before["name"] == "mine"
    assert before["services"]["train"]["command"] == ["run", "gpt", "--steps", "5"]


NASTY = ["a b", "it's", '"', "$HOME", "${X:?}", "$$", "", "\\", "a\nb", "\n# x", "\x07\x85\u2028", "#", "ü😀", "-", "y", "1e-3", "0o17", ": a", "&a", "12"]  # fmt: skip


def test_words_and_values_stay_as_they_were_typed(render: Slipway) -> None:
    Path("my script.py").touch()
    answer = render("--run-dir", "/checkpoints/it's $HOME\n0x1F", "my script.py", "--gpus", "x", *NASTY)
    service = training(answer)
    assert [word.replace("$$", "$") for word in service["command"]] == ["run", "my script.py", "--gpus", "x", *NASTY]
    assert service["environment"]["SLIPWAY_RUN_DIR"] == "/checkpoints/it's $$HOME\n0x1F"
    assert answer.out.split("\n")[1].startswith("# Start it")


def test_what_other_readers_of_yaml_take_for_numbers_is_quoted(render: Slipway) -> None:
    Path("a.py").touch()
    lines = render("a.py", *NASTY).out.split("\n")
    assert [
        word
        for word in ("y", "1e-3", "0o17", "12")
        if f'      - "{word}"' not in lines and f"      - '{word}'" not in lines
    ] == []


def test_a_script_finds_the_folder_that_it_lies_in(render: Slipway) -> None:
    Path("train.py").touch()
    assert training(render("train.py", "--nodes", "7"))["volumes"][-1] == ".:/workspace"
    assert training(render("-m", "my.package", "--nodes", "7"))["command"] == [
        "run",
        "-m",
        "my.package",
        "--nodes",
        "7",
    ]
    assert ".:/workspace" not in training(render("gpt"))["volumes"]


def test_settings_come_from_options_the_environment_and_the_env_file(render: Slipway) -> None:
    Path(".env").write_text(
        "WORKLOAD=linear --steps 5\nSLIPWAY_BACKEND=nccl\nSLIPWAY_RUNS=/checkpoints/team\nNNODES=1\n"
    )
    service = training(render("--resume", "none", "--check", SLIPWAY_BACKEND="gloo", HF_TOKEN="hunter2"))
    assert service["command"] == ["run", "linear", "--steps", "5"]
    assert service["environment"] == {
        "COMPOSE_SERVICE": "train",
        "SLIPWAY_RESUME": "none",
        "SLIPWAY_BACKEND": "gloo",
        "SLIPWAY_CHECK": "1",
        "SLIPWAY_RUNS": "/checkpoints/team",
    }


def test_a_file_that_was_named_takes_the_place_of_the_env_file(render: Slipway) -> None:
    Path("it$s.env").write_text("SLIPWAY_GRACE_SECONDS=300\nNCCL_DEBUG=INFO\n")
    service = training(render("--env-file", "it$s.env"))
    assert service["env_file"] == [{"path": "it$$s.env", "required": True}]
    assert "NCCL_DEBUG" not in service["environment"]


@pytest.mark.parametrize("environ", [{"SLIPWAY_GRACE_SECONDS": "300"}, {}])
def test_the_container_has_the_grace_and_time_to_leave(render: Slipway, environ: dict[str, str]) -> None:
    words = [] if environ else ["--grace-seconds", "300"]
    service = training(render(*words, **environ))
    assert (service["stop_grace_period"], service["environment"]["SLIPWAY_GRACE_SECONDS"]) == ("310s", "300")
    assert training(render())["stop_grace_period"] == f"{int(BY_NAME['SLIPWAY_GRACE_SECONDS'].default) + 10}s"


def test_a_secret_of_the_shell_is_passed_on_and_not_written_down(render: Slipway) -> None:
    answer = render("gpt", SLIPWAY_TOKEN="hunter2hunter2")
    environment = training(answer)["environment"]
    assert environment["SLIPWAY_TOKEN"] is None
    assert "hunter2" not in answer.out
    assert "# SLIPWAY_TOKEN is a secret" in answer.out


def test_a_secret_of_the_env_file_comes_with_that_file(render: Slipway) -> None:
    Path(".env").write_text("SLIPWAY_TOKEN=hunter2hunter2\n")
    answer = render("gpt")
    assert "SLIPWAY_TOKEN" not in training(answer)["environment"], "it would hide what the file says"
    assert "hunter2" not in answer.out


def test_a_secret_among_the_words_is_not_repeated_in_the_comment(render: Slipway) -> None:
    Path("a.py").touch()
    assert render("a.py", "--api-key", "hunter2hunter2").out.startswith(
        "# Made by: slipway render compose a.py --api-key ***\n"
    )


def test_it_says_when_compose_would_read_another_file(render: Slipway) -> None:
    Path(".env").write_text("COMPOSE_FILE=compose/compose.yaml\n")
    answer = render("gpt")
    assert answer.code == 0
    assert "docker compose --file FILE up" in answer.err
    assert yaml.safe_load(answer.out)["services"]["train"]["environment"]["COMPOSE_FILES"] == "compose.yaml"


def test_the_commands_of_a_run_name_a_file_that_compose_does_not_find_by_itself(render: Slipway) -> None:
    before = os.dup(1)
    with Path("other.yaml").open("w") as file:
        os.dup2(file.fileno(), 1)
        answer = render("gpt")
        os.dup2(before, 1)
    os.close(before)
    assert compose_project(training(answer)["environment"]) == "COMPOSE_FILE=other.yaml "


REFUSED = [
    (["--nodes", "2"], {}, 78, "docker run --network host"),
    (["gpt", "--nodes", "2"], {}, 78, "--nodes 1"),
    ([], {"WORLD_SIZE": "2"}, 78, "compose/two-nodes.yaml"),
    (["--nodes", "1:2"], {}, 78, "--nodes 2"),
    (["--image", "slipway"], {}, 78, "slipway:TAG"),
    (["--image", "slipway:latest"], {}, 78, "Name a version"),
    ([], {"IMAGE": "slipway"}, 78, "slipway:TAG"),
    (["--image", "slipway:dev-cpu", "--gpus", "2"], {}, 78, "Leave --gpus out"),
    ([], {"IMAGE": "slipway:cuda12"}, 78, "as in 1.2.3-cuda12"),
    (["--gpus", "-1"], {}, 2, "--gpus"),
    (["--gpus", "all"], {}, 2, "--gpus"),
    (["--name", "Mine"], {}, 2, "small letters"),
    (["--name", "a b"], {}, 2, "small letters"),
    (["--runs", "runs"], {}, 78, "--runs /checkpoints/NAME"),
    ([], {"SLIPWAY_RUN_DIR": "/shared/a"}, 78, "--run-dir /checkpoints/NAME"),
    (["--partition", "a"], {}, 2, "--partition"),
    (["absent.py"], {}, 78, "There is no file absent.py"),
    (["-m", os.fsdecode(b"a\xff")], {}, 78, "UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "environ", "code", "says"), REFUSED, ids=[repr(row[0] or row[1]) for row in REFUSED])
def test_what_cannot_work_is_refused(
    render: Slipway, words: list[str], environ: dict[str, str], code: int, says: str
) -> None:
    answer = render(*words, **environ)
    assert (answer.code, answer.out) == (code, ""), answer.err
    assert says in answer.err
    assert "Traceback" not in answer.err
