"""What a launcher accepts on a connection: what another launcher with its token sent there, each message once and in order."""

import hashlib
from collections.abc import Callable

import pytest

from slipway.launch.rendezvous.authentication import ForgedError, Session, key_of

TOKEN_OF_32 = "0123456789abcdef" * 2
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
    "of a connection with the same numbers, the other way round": lambda listener, connector: pair(nonces=(TWO, ONE))[0].seal(b"x\n"),
    "of a connection with another number of the listener": lambda listener, connector: pair(nonces=("1" + ONE[1:], TWO))[0].seal(b"x\n"),
    "changed": lambda listener, connector: listener.seal(b"x\n").replace(b"x", b"y"),
    "out of order": lambda listener, connector: (listener.seal(b"w\n"), listener.seal(b"x\n"))[1],
    "with another last digit": lambda listener, connector: swap_digit(listener.seal(b"x\n"), 63),
    "with another first digit": lambda listener, connector: swap_digit(listener.seal(b"x\n"), 0),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_else_is_accepted(attack: str) -> None:
    listener, connector = pair()
    with pytest.raises(ForgedError, match="SLIPWAY_TOKEN differs"):
        connector.open(ATTACKS[attack](listener, connector))


def swap_digit(sealed: bytes, place: int) -> bytes:
    """A proof with one other digit."""
    return sealed[:place] + (b"1" if sealed[place : place + 1] == b"0" else b"0") + sealed[place + 1 :]


RECORDED: dict[str, Callable[[], bytes]] = {
    "another token": lambda: pair(other="another token, long enough")[1].seal(b"x\n"),
    "no proof": lambda: b"x\n",
    "its own, sent back": lambda: pair()[0].seal(b"x\n"),
    "of a connection with another number of the connector": lambda: pair(nonces=(ONE, "e" + TWO[1:]))[1].seal(b"x\n"),
    "of an earlier connection": lambda: pair(nonces=("1" + ONE[1:], TWO))[1].seal(b"x\n"),
    "of an earlier connection whose number ended differently": lambda: pair(nonces=(ONE[:-1] + "1", TWO))[1].seal(
        b"x\n"
    ),
}


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_side_that_listens_accepts_nothing_else_either(recorded: str) -> None:
    with pytest.raises(ForgedError, match="SLIPWAY_TOKEN differs"):
        pair()[0].open(RECORDED[recorded]())


def test_a_proof_is_what_the_standards_say() -> None:
    """HKDF by RFC 5869 and HMAC by RFC 2104, computed here from their definitions."""

    def mac(key: bytes, text: bytes) -> bytes:
        key = key.ljust(64, b"\0")
        inner, outer = bytes(byte ^ 0x36 for byte in key), bytes(byte ^ 0x5C for byte in key)
        return hashlib.sha256(outer + hashlib.sha256(inner + text).digest()).digest()

    secret = mac(bytes.fromhex(ONE + TWO), TOKEN_OF_32.encode())
    key = mac(secret, b"slipway rendezvous, listener" + b"\1")
    proof = mac(key, bytes(7) + b"\1" + b"x\n").hex().encode()
    assert pair(TOKEN_OF_32)[0].seal(b"x\n") == proof + b" x\n"


def test_a_message_is_accepted_once() -> None:
    listener, connector = pair()
    sealed = listener.seal(b"x\n")
    assert connector.open(sealed) == b"x\n"
    with pytest.raises(ForgedError, match="was changed, repeated or inserted"):
        connector.open(sealed)


def test_a_short_token_is_stretched_and_a_long_one_costs_nothing() -> None:
    assert key_of(TOKEN_OF_32) == TOKEN_OF_32.encode()
    assert key_of("") == b""
    for token in ("short", "correct horse battery", "x" * 31):
        assert key_of(token) == hashlib.scrypt(token.encode(), salt=b"slipway rendezvous", n=16_384, r=8, p=1, dklen=32)


def test_a_token_that_is_no_text_is_a_token() -> None:
    """As os.environ gives bytes that are not UTF-8."""
    assert len(key_of("caf\udce9")) == 32
