"""Waiting in tests: for something that holds, and never without saying what for."""

import pytest
from waiting import wait_until


def test_what_holds_at_last_is_returned() -> None:
    answers = iter([None, "", "here"])
    assert wait_until(lambda: next(answers), "an answer", every=0) == "here"


@pytest.mark.parametrize("what", ["the end", lambda: "the end"])
def test_waiting_in_vain_says_what_for(what: str) -> None:
    with pytest.raises(AssertionError, match="waited 0 s in vain for the end"):
        wait_until(lambda: False, what, patience=0, every=0)


def test_what_cannot_hold_any_more_is_not_waited_for() -> None:
    def ended() -> bool:
        raise AssertionError("it has ended")

    with pytest.raises(AssertionError, match="it has ended"):
        wait_until(ended, "its word")
