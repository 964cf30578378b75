"""How much of a text a tokenizer knows: what it turns into its unknown token, or leaves out, is lost to the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slipway.protocol.mistake import ConfigurationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

WARNED, REFUSED = 0.01, 0.5  # shares of a text's characters
ALLOW = "--allow-unknown"
Codes = npt.NDArray[np.uint32]
Tokens = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Coverage:
    """`characters` of a text without blanks, and how many of them are `unknown`: no token of the vocabulary holds them."""

    characters: int = 0
    unknown: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        """The coverage of both texts."""
        return Coverage(self.characters + other.characters, self.unknown + other.unknown)

    @property
    def share(self) -> float:
        """The unknown ones among all, 0 to 1."""
        return self.unknown / self.characters if self.characters else 0.0


class CoverageCounter:
    """Makes tokens and counts exactly, and looks closely only at texts in which something may be unknown.

    The positions of tokens in a text cost as much time as the tokens. They are asked for only where a text holds a character
    that the tokenizer does not know by itself; or once more, where the unknown token appears all the same (a word may be too
    long, or made of pieces that do not fit).
    """

    def __init__(self, library: Library, content: bytes) -> None:
        """Count for `library`, which was read from `content`, a `tokenizer.json`."""
        self._library = library
        self._unknown = find_unknown(library, content)
        self._name = library.id_to_token(self._unknown) if self._unknown >= 0 else None
        self._blank: dict[int, bool] = {}
        self._known: dict[int, bool] = {}

    def encode(self, texts: Sequence[str]) -> tuple[list[Tokens], Coverage]:
        """The tokens of each text, with nothing added, and the coverage of all. Raises what the library raises."""
        counts = np.bincount(code_points("".join(texts)))
        codes = counts.nonzero()[0]
        self._learn(codes)
        characters = int(sum(counts[code] for code in codes.tolist() if not self._blank[code]))
        odd = {chr(code) for code in codes.tolist() if not self._known[code]}
        if self._unknown < 0:  # such a tokenizer leaves single characters out, and its positions are wrong after them
            return self._encode_fast(texts), Coverage(characters, sum(int(counts[ord(letter)]) for letter in odd))
        closely = [number for number, text in enumerate(texts) if not odd.isdisjoint(text)]
        others = [number for number, text in enumerate(texts) if odd.isdisjoint(text)]
        tokens = dict(zip(others, self._encode_fast([texts[number] for number in others]), strict=True))
        closely += [number for number in others if (tokens[number] == self._unknown).any()]
        blanks = np.array([code for code, blank in self._blank.items() if blank], np.uint32)
        unknown = 0
        looked = self._library.encode_batch([texts[number] for number in closely], add_special_tokens=False)
        for number, encoded in zip(closely, looked, strict=True):
            tokens[number] = np.array(encoded.ids, np.uint32)
            unknown += int((self._lost(texts[number], encoded) & ~np.isin(code_points(texts[number]), blanks)).sum())
        return [tokens[number] for number in range(len(texts))], Coverage(characters, unknown)

    def _encode_fast(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text, without their positions; the library spreads them over threads."""
        encoded = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.uint32) for one in encoded]

    def _lost(self, text: str, encoded: Any) -> npt.NDArray[np.bool_]:
        """For each character of a text, whether no known token covers it."""
        known = np.array(encoded.ids, np.int64) != self._unknown
        spans = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        for place in np.flatnonzero(~known):  # a text may hold the unknown token's own name, as WikiText does
            known[place] = text[slice(*spans[place])] == self._name
        begins, ends = (np.bincount(spans[known, side], minlength=len(text) + 1) for side in (0, 1))
        lost: npt.NDArray[np.bool_] = (begins - ends).cumsum()[:-1] <= 0
        return lost

    def _learn(self, codes: npt.NDArray[np.int64]) -> None:
        """Find out about characters that were not seen before."""
        for code in codes.tolist():
            if code not in self._known:
                self._blank[code] = chr(code).isspace()
                self._known[code] = self._blank[code] or self._knows(chr(code))

    def _knows(self, letter: str) -> bool:
        """Whether a character has a token of its own at the beginning, in the middle and at the end of a word."""
        try:
            encoded = self._library.encode(3 * letter, add_special_tokens=False)
        except Exception:  # the library raises no class of its own: a tokenizer that refuses what it does not know
            return True
        return not self._lost(3 * letter, encoded).any()


def code_points(text: str) -> Codes:
    """A text's characters as numbers."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def find_unknown(library: Library, content: bytes) -> int:
    """The id of the token that stands for what is unknown; -1 where a tokenizer has none and leaves such text out."""
    model = json.loads(content).get("model", {})
    name, number = model.get("unk_token"), model.get("unk_id")
    token = library.token_to_id(name) if isinstance(name, str) else number
    return token if isinstance(token, int) else -1


def judge_coverage(coverage: Coverage, tokenizer: str, allowed: bool = False) -> str:
    """A line about how much of a text `tokenizer` knows. Raises ConfigurationError for less than half, unless `allowed`."""
    counted = (
        f"{coverage.unknown:,} of {coverage.characters:,} characters other than blanks become its unknown token or "
        "are left out"
    )
    share = f"{coverage.share:.2%}".replace("%", " %")
    if coverage.share > REFUSED and not allowed:
        raise ConfigurationError(
            f"The tokenizer {tokenizer} does not know {share} of the text: {counted}. A model trained on this learns "
            f"nothing of the text. Type another --tokenizer (bytes knows every text), or {ALLOW} to use it all the same."
        )
    if coverage.share > WARNED:
        return (
            f"warning: the tokenizer {tokenizer} does not know {share} of the text: {counted}. Use a tokenizer that was made "
            "for such text, or --tokenizer bytes."
        )
    return f"unknown text: {share} ({counted})"
