"""What a launcher accepts on a connection: what another launcher with its token sent there, each message once and in order."""

from collections.abc import Callable

import pytest

from slipway.launch.rendezvous.authentication import ForgedError, Session, key_of

TOKEN, ONE, TWO = "a token that nobody guesses", "0" * 32, "f" * 32


def pair(token: str = TOKEN, other: str = TOKEN, nonces: tuple[str, str] = (ONE, TWO)) -> tuple[Session, Session]:
    """The side that listens and the one that connected."""
    listener, connector = nonces
    sides = (key_of(token), True), (key_of(other), False)
    first, second = (Session(key, listener=listener, connector=connector, listens=listens) for key, listens in sides)
    return first, second


def test_both_sides_read_what_the_other_one_sent() -> None:
    listener, connector = pair()
    for line in (b'{"a": 1}\n', b"with blanks in it\n", b"\n"):
        assert connector.open(listener.seal(line)) == line
        assert listener.open(connector.seal(line)) == line


ATTACKS: dict[str, Callable[[Session, Session], bytes]] = {
    "another token": lambda listener, connector: pair("another token, long enough")[0].seal(b"x\n"),
    "no token": lambda listener, connector: pair("")[0].seal(b"x\n"),
    "no proof": lambda listener, connector: b"x\n",
    "an empty proof": lambda listener, connector: b" x\n",
    "a proof that is no text": lambda listener, connector: b"\xff" * 64 + b" x\n",
    "sent back": lambda listener, connector: connector.seal(b"x\n"),
    "of another connection": lambda listener, connector: pair(nonces=(ONE, ONE))[0].seal(b"x\n"),
    "of a connection with the same numbers, the other way round": lambda listener, connector: pair(nonces=(TWO, ONE))[1].seal(b"x\n"),
    "changed": lambda listener, connector: listener.seal(b"x\n").replace(b"x", b"y"),
    "out of order": lambda listener, connector: (listener.seal(b"w\n"), listener.seal(b"x\n"))[1],
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_else_is_accepted(attack: str) -> None:
    listener, connector = pair()
    with pytest.raises(ForgedError, match="SLIPWAY_TOKEN differs"):
        connector.open(ATTACKS[attack](listener, connector))


def test_a_message_is_accepted_once() -> None:
    listener, connector = pair()
    sealed = listener.seal(b"x\n")
    assert connector.open(sealed) == b"x\n"
    with pytest.raises(ForgedError, match="was changed, repeated or inserted"):
        connector.open(sealed)


def test_a_short_token_is_stretched_and_a_long_one_costs_nothing() -> None:
    assert key_of(TOKEN) == TOKEN.encode()
    assert key_of("") == b""
    assert len(key_of("short")) == 32
    assert key_of("short") != key_of("shorter")
