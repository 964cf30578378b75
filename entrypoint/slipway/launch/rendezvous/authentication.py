"""Who is at the other end of a connection: a launcher that knows SLIPWAY_TOKEN, and every message is as that launcher sent it.

Each step follows a standard:

- The exchange is the three-pass mutual authentication of ISO/IEC 9798-4. Each side sends a nonce. Then the side that listens
  proves itself first, and after it the side that connected. So nobody learns anything about the token from a launcher that
  connects to the wrong place.
- Each proof is an HMAC-SHA256 (RFC 2104). Each direction of each connection has a key of its own, which HKDF (RFC 5869) derives
  from the token, both nonces and the role of the sender. A proof can therefore not be relayed to another connection, nor be
  sent back to where it came from.
- Every message carries such a proof of its number on the connection and of all its bytes, like a record of TLS 1.2 (RFC 5246,
  section 6.2.3.1). It can be neither changed, repeated, left out nor moved. The first message of each side completes
  the exchange.
- scrypt (RFC 7914) stretches a token that is shorter than those that docs/security.md has people make.

Without a token the key is empty: the exchange then keeps no one out.
"""

import functools
import hashlib
import hmac

from slipway.protocol.decoding import MalformedError

RANDOM_TOKEN = 32  # characters of 16 random bytes in hexadecimal; what is shorter may be words
NONCE_BYTES = 16
SEAL_BYTES = 65  # 64 hexadecimal digits and a blank, before each message
DIFFERS = "SLIPWAY_TOKEN differs between this launcher and the other one, or is set on only one of them"


class ForgedError(MalformedError):
    """A message that no launcher with this token has sent on this connection."""


@functools.cache
def key_of(token: str) -> bytes:
    """The key that a token stands for. A short one takes 16 MiB and some 50 ms: what scrypt's authors advise for log-ins."""
    secret = token.encode(errors="surrogateescape")
    if 0 < len(token) < RANDOM_TOKEN:
        return hashlib.scrypt(secret, salt=b"slipway rendezvous", n=1 << 14, r=8, p=1, dklen=32)
    return secret


class Session:
    """One connection after both sides have sent their nonces (hexadecimal): it seals what this side sends, and opens what it
    receives.
    """

    def __init__(self, key: bytes, *, listener: str, connector: str, listens: bool) -> None:
        """`listener` is the nonce of the side that listens, `connector` that of the other one; `listens`: this is the first."""
        secret = hmac.digest(
            bytes.fromhex(listener + connector), key, "sha256"
        )  # HKDF-Extract, with the nonces as the salt
        keys = [_expand(secret, b"slipway rendezvous, listener"), _expand(secret, b"slipway rendezvous, connector")]
        self._own, self._other = keys if listens else keys[::-1]
        self._sent = self._received = 0

    def seal(self, line: bytes) -> bytes:
        """The next message to send, after its proof."""
        self._sent += 1
        return _proof(self._own, self._sent, line) + b" " + line

    def open(self, sealed: bytes) -> bytes:
        """The message that was received. Raises ForgedError."""
        proof, _, line = sealed.partition(b" ")
        self._received += 1
        if hmac.compare_digest(proof, _proof(self._other, self._received, line)):
            return line
        raise ForgedError(DIFFERS if self._received == 1 else "a message was changed, repeated or inserted on its way")


def _expand(secret: bytes, purpose: bytes) -> bytes:
    """HKDF-Expand for a key of one block."""
    return hmac.digest(secret, purpose + b"\1", "sha256")


def _proof(key: bytes, number: int, line: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + line, "sha256").hex().encode()
