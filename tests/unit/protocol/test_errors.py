"""The one table of exit codes."""

import pytest

from slipway.launch.verdict.verdict import CODES
from slipway.protocol import errors
from slipway.protocol.errors import CODE_OF, CONFIGURATION, EXITS, UNHEALTHY, LaunchError


def test_the_table_is_complete() -> None:
    assert set(EXITS) == {0, 1, 2, 75, 76, 77, 78, 79, 93}
    named = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert named == set(EXITS)


def test_every_code_has_a_word_of_its_own() -> None:
    assert {row.word: code for code, row in EXITS.items()} == dict(CODE_OF)
    assert len(CODE_OF) == len(EXITS)


@pytest.mark.parametrize("code", EXITS)
def test_every_code_says_what_it_means_and_what_then(code: int) -> None:
    row = EXITS[code]
    assert row.meaning
    assert row.then
    assert row.word == row.word.lower().strip()


def test_every_word_that_a_worker_may_write_has_a_code() -> None:
    words = {"finished", "stopped", "cancelled", "failed", "configuration", "peer", "unhealthy", "no-progress"}
    assert words <= set(CODE_OF)
    assert {CODES[word] for word in words} == set(EXITS) - {errors.USAGE}


def test_an_error_is_one_of_configuration_unless_it_says_otherwise() -> None:
    assert (str(LaunchError("text")), LaunchError("text").code) == ("text", CONFIGURATION)
    assert LaunchError("text", UNHEALTHY).code == UNHEALTHY


def test_nobody_can_change_the_table() -> None:
    with pytest.raises(TypeError):
        EXITS[5] = EXITS[0]  # type: ignore[index]
