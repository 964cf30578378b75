"""The lines of a `.env` file that docker, compose and python-dotenv read alike; all others are refused unread."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.launch.resolve.settings import read_env_file
from slipway.protocol.errors import CONFIGURATION, LaunchError


def read(folder: Path, text: str) -> dict[str, str]:
    file = folder / ".env"
    file.write_text(text, encoding="utf-8")
    return read_env_file(file)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NAME=value", "value"),
        ("NAME=v", "v"),
        ("NAME=gpt --preset tiny", "gpt --preset tiny"),
        ("NAME=a#b", "a#b"),
        ("NAME=a#", "a#"),
        ("NAME=https://host:1/path?a=b&c=d#part", "https://host:1/path?a=b&c=d#part"),
        ("NAME=YQ==", "YQ=="),
        ("NAME=a=b=c", "a=b=c"),
        ("NAME==", "="),
        ("NAME=*?[]{}()<>|;&!~%@,:+-/", "*?[]{}()<>|;&!~%@,:+-/"),
        ("NAME=Straße", "Straße"),
        ("# comment", None),
        ("  # comment", None),
        ("#NAME=value", None),
        ("", None),
        ("   ", None),
        ("NAME=", None),
    ],
)
def test_lines_that_all_readers_understand_alike(tmp_path: Path, line: str, value: str | None) -> None:
    assert read(tmp_path, f"{line}\nLAST=1\n") == ({"LAST": "1"} if value is None else {"NAME": value, "LAST": "1"})


@pytest.mark.parametrize(
    "line",
    [
        "TOKEN='hunter2'",
        'TOKEN="hunter2"',
        'TOKEN=hunter2"',
        "TOKEN=hunter2's",
        "TOKEN=$hunter2",
        "TOKEN=hunter2$$",
        "TOKEN=${hunter2}",
        "TOKEN=hunter2\\n",
        "TOKEN=`hunter2`",
        "export TOKEN=hunter2",
        "TOKEN=hunter2 # mine",
        "TOKEN=hunter2\t# mine",
        "TOKEN= hunter2",
        "TOKEN=hunter2 ",
        "TOKEN=hunter2\t",
        "TOKEN =hunter2",
        " TOKEN=hunter2",
        "1TOKEN=hunter2",
        "TO-KEN=hunter2",
        "TOKEN: hunter2",
        "TOKEN hunter2",
        "=hunter2",
    ],
)
def test_other_lines_are_refused_by_file_and_line_and_never_show_the_value(tmp_path: Path, line: str) -> None:
    with pytest.raises(LaunchError) as caught:
        read(tmp_path, f"RANK=0\n\n{line}\n")
    assert caught.value.code == CONFIGURATION
    assert f"{tmp_path / '.env'}, line 3" in str(caught.value)
    assert "NAME=value" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_name_without_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="line 1"):
        read(tmp_path, "NAME\n")


def test_the_last_of_two_lines_counts(tmp_path: Path) -> None:
    assert read(tmp_path, "NAME=1\nNAME=2\n") == {"NAME": "2"}


def test_line_ends_of_windows_are_no_part_of_a_value(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(b"RANK=1\r\nWORLD_SIZE=2\r\n")
    assert read_env_file(file) == {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize("content", [None, b"NAME=\xff\xfe\n"])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "job.env"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LaunchError, match=r"job\.env cannot be read"):
        read_env_file(file)


VISIBLE = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"$\\`#"), min_size=1)


@given(value=st.lists(VISIBLE, min_size=1).map(" ".join))
def test_what_is_accepted_is_read_as_it_stands(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    assert read(tmp_path_factory.mktemp("env"), f"NAME={value}\n") == {"NAME": value}
