"""Secrets are kept out of what people may pass on: known by the names of their variables and options, or by their form.

Pure. What has neither a telling name nor a known form, and whose value is not in the environment, nobody can tell from text.
"""

import json
import re
import shlex
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

STARS = "***"
SHORTEST = 4  # characters; a shorter value protects nothing, and would blank out half of every text
HARMLESS = frozenset({"true", "false", "none", "null", "auto"})  # TOKENIZERS_PARALLELISM=false
# Characters; a private RSA key of 16384 bits takes 12,800, and each line of a log has a time in front.
KEY_BLOCK = 20_000

_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|_KEY$|^KEY$|^SLIPWAY_NOTIFY$|WEBHOOK", re.IGNORECASE)

# Names in running text. Counts (`tokens: 512`) and `--tokenizer` are no secrets, so small letters have to end in the word.
# No form takes more than linear time, whatever the text: every repetition that another may follow is bounded. They are
# texts, which `re` compiles when a line needs them: all of them together take 5 ms, which no start should pay.
_WORD = r"(?i:token|secret|passw(?:or)?d|passphrase|credentials?|[_-]key|apikey)"
_VARIABLE = r"(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)[A-Z0-9_]{0,40}"
_OPTION = rf"--[\w-]{{0,40}}?{_WORD}"
_ASSIGNED = r"""["']?\s{0,9}[:=]\s{0,9}b?"""
_VALUE = r"""(?:"[^"\n]+"|'[^'\n]+'|[^\s"',;)}\]]+)"""
_FORMS = (
    r"://[^\s/:@]{0,100}:(?P<secret>[^\s/@]+)@",
    rf"(?i)authorization{_ASSIGNED}[\"']?(?:[a-z]{{1,20}}\s{{1,9}})?(?P<secret>[^\s\"',]+)",
    r"(?i)\bbearer\s{1,9}(?P<secret>[\w.~+/=-]{8,})",
    r"\b(?P<secret>hf_(?=[a-z]{0,99}[A-Z0-9])[A-Za-z0-9]{10,})",  # not hf_something of a program
    r"\b(?P<secret>gh[oprsu]_\w{16,}|github_pat_\w{20,}|glpat-[\w-]{16,})",
    r"\b(?P<secret>(?:AKIA|ASIA)[A-Z0-9]{16})\b",
    r"\b(?P<secret>sk-[\w-]{16,})",
    r"\b(?P<secret>xox[a-z]-[\w-]{10,})",
    r"\b(?P<secret>AIza[\w-]{30,})",
    r"\b(?P<secret>eyJ[\w-]{8,200}\.eyJ[\w-]{8,}\.[\w-]*)",  # a JSON web token
    rf"(?:{_WORD}|{_VARIABLE}){_ASSIGNED}(?P<secret>{_VALUE})",
    rf"{_OPTION}\s{{1,9}}(?!--)(?P<secret>{_VALUE})",
)
# Whether one of them may match a line, which is asked in small letters: most lines are spared the rest.
_TELLING = (
    r"""://[^\s/]*@|authorization|bearer|hf_|gh[oprsu]_|github_pat|glpat-|akia|asia|sk-|xox|aiza|eyj|"""
    rf"""(?:token|secret|passw|passphrase|credential|[_-]key|apikey)[a-z0-9_]{{0,40}}(?:{_ASSIGNED}|\s)"""
)
_KEY_BLOCKS = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    rf"(?s:.{{0,{KEY_BLOCK}}}?-----END [A-Z ]{{0,40}}PRIVATE KEY-----|.{{0,{KEY_BLOCK}}})",
    rf"\A(?s:.{{0,{KEY_BLOCK}}}?)-----END [A-Z ]{{0,40}}PRIVATE KEY-----",  # of a text cut within
)


def redact(name: str, value: str) -> str:
    """Return the value, or stars where the name says that it is a secret."""
    return STARS if _SECRET.search(name) and value else value


def secret_values(*environments: Mapping[str, str]) -> dict[str, str]:
    """Those variables whose names say that they are secrets, of the environment and of files like `.env`."""
    return {
        name: value
        for environ in environments
        for name, value in environ.items()
        if _SECRET.search(name) and len(value) >= SHORTEST and value.lower() not in HARMLESS
    }


def secret_arguments(words: Sequence[object]) -> list[str]:
    """The values of those options of a command line whose names say that they are secrets."""
    values = []
    for before, word in zip([None, *words], words, strict=False):
        name, _, value = str(word).partition("=")
        if _is_option(before):
            values.append(str(word))
        elif value and _is_option(name):
            values.append(value)
    return values


def make_redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return what takes secrets out of a text: these values in any of their spellings, and everything of a known form."""
    spelled = {
        spelling
        for secret in secrets
        for part in {secret, *secret.splitlines()}  # a key's lines have times between them in a log
        if len(part) >= SHORTEST
        for spelling in (
            part,
            json.dumps(part)[1:-1],
            repr(part)[1:-1],
            shlex.quote(part),
            urllib.parse.quote(part, ""),
        )
    }
    values = [re.compile(re.escape(value)) for value in spelled]

    def clean(text: str) -> str:
        found = [match.span() for value in values for match in value.finditer(text)]
        if "PRIVATE KEY-----" in text:
            found += [match.span() for block in _KEY_BLOCKS for match in re.finditer(block, text)]
        start = 0
        for line in text.splitlines(keepends=True):
            if re.search(_TELLING, line.lower()):
                spans = (match.span("secret") for form in _FORMS for match in re.finditer(form, line))
                found += [(start + begin, start + end) for begin, end in spans]
            start += len(line)
        return _blank(text, sorted(found))

    return clean


def _blank(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text with stars in place of each span, and of those that overlap or touch together."""
    kept: list[str] = []
    last = 0
    for begin, end in spans:
        if begin > last or not kept:
            kept.append(text[last:begin])
        last = max(last, end)
    return STARS.join([*kept, text[last:]])


def redact_json(value: Any, clean: Callable[[str], str]) -> Any:
    """The same for what was read from JSON: `clean` for texts, stars for one under a secret's name or behind its option."""
    if isinstance(value, dict):
        return {
            clean(name): STARS if _is_text(inner) and _named_secret(name) else redact_json(inner, clean)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [
            STARS if _is_text(inner) and _is_option(before) else redact_json(inner, clean)
            for before, inner in zip([None, *value], value, strict=False)
        ]
    return clean(value) if isinstance(value, str) else value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _named_secret(name: str) -> bool:
    return bool(re.fullmatch(rf".*(?:{_WORD}|{_VARIABLE})", name))


def _is_option(word: object) -> bool:
    return isinstance(word, str) and bool(re.fullmatch(_OPTION, word))
