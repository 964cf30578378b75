"""Our lines of a `.env` file are those that docker, compose and python-dotenv read alike; others are passed over unread."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import Slipway

from slipway.launch.resolve.portable_values import explain_given
from slipway.launch.resolve.sources import read_all_values, split_env_file
from slipway.protocol.errors import CONFIGURATION, LaunchError


def read(folder: Path, text: str) -> dict[str, str]:
    file = folder / ".env"
    file.write_text(text, encoding="utf-8")
    return split_env_file(file)[0]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("WORKLOAD=value", "value"),
        ("WORKLOAD=v", "v"),
        ("WORKLOAD=gpt --preset tiny", "gpt --preset tiny"),
        ("WORKLOAD=a#b", "a#b"),
        ("WORKLOAD=a#", "a#"),
        ("WORKLOAD=https://host:1/path?a=b&c=d#part", "https://host:1/path?a=b&c=d#part"),
        ("WORKLOAD=YQ==", "YQ=="),
        ("WORKLOAD=a=b=c", "a=b=c"),
        ("WORKLOAD==", "="),
        ("WORKLOAD=*?[]{}()<>|;&!~%@,:+-/", "*?[]{}()<>|;&!~%@,:+-/"),
        ("WORKLOAD=Straße", "Straße"),
        ("# comment", None),
        ("  # comment", None),
        ("#WORKLOAD=value", None),
        ("", None),
        ("   ", None),
        ("WORKLOAD=", None),
    ],
)
def test_lines_that_all_readers_understand_alike(tmp_path: Path, line: str, value: str | None) -> None:
    assert read(tmp_path, f"{line}\nRANK=1\n") == ({"RANK": "1"} if value is None else {"WORKLOAD": value, "RANK": "1"})


@pytest.mark.parametrize(
    "line",
    [
        "SLIPWAY_TOKEN='hunter2'",
        'SLIPWAY_TOKEN="hunter2"',
        'SLIPWAY_TOKEN=hunter2"',
        "SLIPWAY_TOKEN=hunter2's",
        "SLIPWAY_TOKEN=$hunter2",
        "SLIPWAY_TOKEN=hunter2$$",
        "SLIPWAY_TOKEN=${hunter2}",
        "SLIPWAY_TOKEN=hunter2\\n",
        "SLIPWAY_TOKEN=`hunter2`",
        "export SLIPWAY_TOKEN=hunter2",
        "SLIPWAY_TOKEN=hunter2 # mine",
        "SLIPWAY_TOKEN=hunter2\t# mine",
        "SLIPWAY_TOKEN= hunter2",
        "SLIPWAY_TOKEN=hunter2 ",
        "SLIPWAY_TOKEN=hunter2\t",
        "SLIPWAY_TOKEN =hunter2",
        " SLIPWAY_TOKEN=hunter2",
        "SLIPWAY_TOKEN: hunter2",
        "SLIPWAY_TOKEN hunter2",
    ],
)
def test_other_lines_are_refused_by_file_and_line_and_never_show_the_value(tmp_path: Path, line: str) -> None:
    with pytest.raises(LaunchError) as caught:
        read(tmp_path, f"RANK=0\n\n{line}\n")
    assert caught.value.code == CONFIGURATION
    assert f"{tmp_path / '.env'}, line 3" in str(caught.value)
    assert "Write SLIPWAY_TOKEN=" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_name_without_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="line 1"):
        read(tmp_path, "RANK\n")


def test_the_last_of_two_lines_counts(tmp_path: Path) -> None:
    assert read(tmp_path, "WORKLOAD=1\nWORKLOAD=2\n") == {"WORKLOAD": "2"}


def test_line_ends_of_windows_are_no_part_of_a_value(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(b"RANK=1\r\nWORLD_SIZE=2\r\n")
    assert split_env_file(file)[0] == {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("content", "from_powershell"),
    [(None, False), (b"WORKLOAD=Stra\xdfe\n", False), ("\ufeffRANK=1\r\n".encode("utf-16-le"), True)],
    ids=["absent", "Latin-1", "UTF-16"],
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(
    tmp_path: Path, content: bytes | None, from_powershell: bool
) -> None:
    file = tmp_path / "job.env"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LaunchError, match=r"job\.env cannot be read") as caught:
        split_env_file(file)
    assert ("PowerShell" in str(caught.value)) is from_powershell
    assert content is None or "line 1 is not UTF-8" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "export WANDB_API_KEY='abc' # mine",
        'OPENAI_API_KEY="sk-$HOME"',
        "GREETING = hello ${USER}",
        "UNFINISHED='abc",
        "TO-KEN=1",
        "RANK-OF=1",
        "1RANK=x",
        "=x",
        "no line of such a file",
        "KEY='-----BEGIN\nRANK=7\n-----END'",
        "LOCAL_RANK=3",
        "HF_TOKEN='abc'",
    ],
)
def test_lines_of_others_are_passed_over(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"NNODES=2\n{line}\nRANK=1\n") == {"NNODES": "2", "RANK": "1"}


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "CUDA_DEVICE_ORDER", "TORCH_LOGS"]
)
def test_what_torchs_libraries_are_told_counts_and_is_read_as_strictly(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, f"{name}=1\n") == {name: "1"}
    with pytest.raises(LaunchError, match=rf"line 2 \({name}\)"):
        read(tmp_path, f"\n{name}='1'\n")


def test_lines_of_others_are_returned_apart_and_never_without_a_name_or_a_value(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MASTER_ADRR=n0\n=x\nEMPTY=\nexport HF_TOKEN='abc'\nRANK=1\nNNODES=\n")
    assert split_env_file(tmp_path / ".env") == ({"RANK": "1"}, {"MASTER_ADRR": "n0", "HF_TOKEN": "abc"})


def test_a_setting_that_is_mistyped_is_told(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"line 1: there is no setting SLIPWAY_GRACE\. Did you mean SLIPWAY_"):
        read(tmp_path, "SLIPWAY_GRACE=5\n")


def test_an_error_about_a_mistyped_setting_names_the_others_as_well(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        read(tmp_path, "SLIPWAY_RESUM=auto\nWROLD_SIZE=2\nSLIPWAY_GRACE=5\nHF_TOKEN=abc\n")
    for name in ("setting SLIPWAY_RESUM.", "setting SLIPWAY_GRACE.", "WROLD_SIZE (from .env)"):
        assert name in str(caught.value)
    assert "HF_TOKEN" not in str(caught.value)


def test_what_must_not_be_shown_is_found_in_lines_of_others_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("export HF_TOKEN='abc'\nRANK='1'\nEMPTY=\n")
    assert read_all_values(tmp_path / ".env") == {"HF_TOKEN": "abc", "RANK": "1"}


VISIBLE = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"$\\`#"), min_size=1)


@given(value=st.lists(VISIBLE, min_size=1).map(" ".join))
def test_what_is_accepted_is_read_as_it_stands(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    assert read(tmp_path_factory.mktemp("env"), f"WORKLOAD={value}\n") == {"WORKLOAD": value}


ME, HOST, OTHER = 0, 1000, 65_534
# Who runs, whose are the file, the folder and a link to the file, both modes, and why the file is refused.
OWNERS = {
    "mine": (ME, ME, ME, None, 0o755, 0o644, ""),
    "mine, the group's as well (umask 002, fsGroup)": (ME, ME, ME, None, 0o775, 0o664, ""),
    "mine in a folder of all": (HOST, HOST, ME, None, 0o1777, 0o644, ""),
    "root's (a ConfigMap)": (HOST, ME, ME, None, 0o777, 0o644, ""),
    "the host's user's in the image's /workspace": (ME, HOST, HOST, None, 0o755, 0o644, ""),
    "another user's of the image in /workspace": (OTHER, HOST, HOST, None, 0o755, 0o600, ""),
    "a link of mine (compose/.env)": (ME, ME, ME, ME, 0o755, 0o644, ""),
    "a foreign one in /tmp": (ME, OTHER, ME, None, 0o1777, 0o644, "belongs to user 65534"),
    "a foreign one in a folder of the group": (HOST, OTHER, ME, None, 0o775, 0o644, "belongs to user 65534"),
    "of one owner with a folder of all, as unmapped users look": (ME, OTHER, OTHER, None, 0o1777, 0o644, "belongs to user"),
    "a foreign link to mine": (ME, ME, ME, OTHER, 0o1777, 0o644, "belongs to user 65534"),
    "a link of mine to a foreign one": (ME, OTHER, ME, ME, 0o755, 0o644, "belongs to user 65534"),
    "mine that all may write": (ME, ME, ME, None, 0o755, 0o666, r"every user may write it \(chmod o-w .env\)"),
}  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("case", OWNERS)
def test_a_file_that_another_user_may_have_put_there_is_refused_unless_somebody_names_it(
    slipway: Slipway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    runs, owner, folder_owner, link_owner, folder_mode, mode, refused = OWNERS[case]
    file = tmp_path / ("job.env" if link_owner is not None else ".env")
    file.write_text("SLIPWAY_STORE=file:///nowhere\nCUDA_INJECTION64_PATH=/tmp/evil.so\n")
    os.chown(file, owner, -1)
    file.chmod(mode)
    if link_owner is not None:
        (tmp_path / ".env").symlink_to("job.env")
        os.chown(tmp_path / ".env", link_owner, -1, follow_symlinks=False)
    os.chown(tmp_path, folder_owner, -1)
    tmp_path.chmod(folder_mode)
    monkeypatch.setattr(os, "geteuid", lambda: runs)
    answer = slipway("plan", "linear")
    assert (answer.code, "evil.so" in answer.out) == ((78, False) if refused else (0, True)), answer.err
    assert re.search(refused, answer.err)
    assert ("type --env-file .env" in " ".join(answer.err.split())) is bool(refused)
    if refused:
        assert slipway("status").code == 78
        answer = slipway("plan", "--env-file", ".env", "linear")
    assert "settings from .env: CUDA_INJECTION64_PATH, SLIPWAY_STORE" in answer.out


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        ("SLIPWAY_RUNS=elsewhere", "status", "runs of elsewhere, from .env (SLIPWAY_RUNS)"),
        ("SLIPWAY_RUNS=elsewhere", "logs", "runs of elsewhere, from .env (SLIPWAY_RUNS)"),
        ("WORLD_SIZE=2", "status", ""),
        ("SLIPWAY_GRACE_SECONDS=2", "check --local --json --grace-seconds 3", ""),  # what counts is the option
        ("NCCL_DEBUG=INFO", "check --local --json", "settings from .env: NCCL_DEBUG"),
    ],
)
def test_each_command_says_what_it_takes_from_a_file(
    line: str, words: str, said: str, tmp_path: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text(line + "\n")
    answer = slipway(*words.split())
    assert said in answer.err
    assert bool(said) == (".env" in answer.err)
    assert "settings from" not in answer.out


@pytest.mark.parametrize(
    ("line", "what", "write"),
    [
        ("export RANK=1", "it has `export`,", "RANK=1"),
        ("RANK='1' # mine", "it has quotes and a comment after the value,", "RANK=1"),
        ("RANK= 1", "it has a space beside the =,", "RANK=1"),
        ("RANK =1", "it has a space beside the =,", "RANK=1"),
        (" RANK=1", "it has a space before the name,", "RANK=1"),
        ("RANK=1 ", "it has a space at the end,", "RANK=1"),
        ("RANK: 1", "it has no = after the name,", "RANK=1"),
        ("RANK 1", "it has no = after the name,", "RANK=1"),
        ("export RANK", "it has `export` and no = after the name,", "RANK=VALUE, with the value itself"),
        ("SLIPWAY_RUNS=$HOME/runs", "it has a $,", "SLIPWAY_RUNS=VALUE, with the value itself"),
        ("SLIPWAY_RUNS=a\\b", "it has a backslash,", "SLIPWAY_RUNS=VALUE, with the value itself"),
        ('SLIPWAY_TOKEN="hunter2"', "it has quotes,", "SLIPWAY_TOKEN=***"),
    ],
)
def test_a_line_that_is_refused_is_shown_with_its_mistake_and_corrected(
    tmp_path: Path, line: str, what: str, write: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        read(tmp_path, f"{line}\n")
    assert f": {what}" in str(caught.value)
    assert str(caught.value).endswith(f"Write {write}.")


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"RANK=1\n\nWORKLOAD=Stra\xdfe.py\n")
    with pytest.raises(LaunchError, match=r"line 3 is not UTF-8\. Save it as UTF-8\."):
        split_env_file(tmp_path / ".env")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("SLIPWAY_RUNS", '"/checkpoints"', "the quotes are part .* --env-file keeps them. Write SLIPWAY_RUNS=/checkpoints."),
        ("SLIPWAY_RUNS", "$HOME/runs", "placeholder"),
        ("SLIPWAY_RUNS", "${HOME}/runs", "placeholder"),
        ("SLIPWAY_RUNS", "/data # here", "the comment is part .* Write SLIPWAY_RUNS=/data."),
        ("WORLD_SIZE", '"2"', "the quotes are part .* Write WORLD_SIZE=2."),
        ("RANK", "'0' # first", "the quotes are part .* Write RANK=0."),
        ("WORKLOAD", '"gpt --preset small"', "the quotes are part .* Write WORKLOAD=gpt --preset small."),
        ("SLIPWAY_TOKEN", '"hunter2"', r"the quotes are part .* Write SLIPWAY_TOKEN=\*\*\*\."),
        ("NCCL_DEBUG", "'INFO'", "the quotes are part .* Write NCCL_DEBUG=INFO."),
    ],
)  # fmt: skip
def test_what_dockers_env_file_keeps_in_a_value_is_refused(slipway: Slipway, name: str, value: str, why: str) -> None:
    answer = slipway("plan", "linear", **{name: value})
    assert answer.code == CONFIGURATION
    assert re.search(why, answer.err), answer.err
    assert "hunter2" not in answer.err
    assert not Path("runs").exists()


def test_the_comment_behind_an_address_is_named(slipway: Slipway) -> None:
    answer = slipway("plan", "linear", WORLD_SIZE="2", RANK="1", MASTER_ADDR="node0 # the first")
    assert (answer.code, "Write MASTER_ADDR=node0." in answer.err) == (CONFIGURATION, True), answer.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKLOAD", "linear --text 'a b'"),
        ("WORKLOAD", "'a b.py' --x 'y'"),
        ("SLIPWAY_TOKEN", "pa$sword"),
        ("SLIPWAY_NOTIFY", "https://chat/#room"),
        ("SLIPWAY_RUNS", "/mnt/$1"),
        ("SLIPWAY_RUNS", "/mnt/it's"),
    ],
)
def test_quotes_and_signs_that_may_be_meant_stay(name: str, value: str) -> None:
    assert explain_given(name, value) == ""


def test_a_mistyped_name_is_told_once(slipway: Slipway) -> None:
    Path(".env").write_text("WROLD_SIZE=2\nHF_TOKEN=abc\n")
    answer = slipway("plan", "linear")
    assert "Did you mean WORLD_SIZE?" in answer.out
    assert answer.out.count("WROLD_SIZE") == 1
    assert "no settings of Slipway: HF_TOKEN." in answer.out
    Path(".env").write_text("WROLD_SIZE=2\nWORLD_SIZE=1\nRANK=0\n")
    assert "no settings of Slipway: WROLD_SIZE." in slipway("plan", "linear").out, "nobody meant WORLD_SIZE"


def test_plan_names_the_lines_that_do_not_count(slipway: Slipway) -> None:
    Path(".env").write_text("RANK=3\nHF_TOKEN='abc'\nworld_size=2\nRANK=0\n")
    answer = slipway("plan", "linear")
    assert ".env: ignored, because they are no settings of Slipway: HF_TOKEN." in answer.out
    assert "world_size (from .env) is not a setting of Slipway. Did you mean WORLD_SIZE?" in answer.out
    assert ".env: RANK stands there 2 times, and the last line counts" in answer.out
    assert "abc" not in answer.out
    Path(".env").write_text("RANK=0\n")
    assert ".env: " not in slipway("plan", "linear").out.replace("from .env: RANK", "")


def test_all_values_that_docker_kept_quotes_and_comments_in_are_named_at_once(slipway: Slipway) -> None:
    answer = slipway("plan", "linear", WORLD_SIZE='"2"', MASTER_ADDR="node0 # the first", NCCL_DEBUG="'INFO'")
    assert answer.code == CONFIGURATION
    for line in ("Write WORLD_SIZE=2.", "Write MASTER_ADDR=node0.", "Write NCCL_DEBUG=INFO."):
        assert line in " ".join(answer.err.split())
