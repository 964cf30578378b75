"""Values that docker's --env-file, compose, python-dotenv and a shell read differently: what is wrong, and what to write. Pure.

docker's --env-file takes everything after = as the value, quotes and comments included; a shell removes both.
"""

import re

from slipway.launch.resolve.foreign_values import explain_value
from slipway.protocol.redact import redact

PORTABLE = re.compile(r"""[A-Za-z_][A-Za-z0-9_]*=(?:[^\s'"$\\`#]|[^\s'"$\\`#](?:(?!\s\#)[^'"$\\`])*[^\s'"$\\`])?""")
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>\w+)\s*(?P<sign>[=:]?)(?P<value>.*)", re.DOTALL)
_WHOLE = re.compile(r"""\s*(["'])((?:(?!\1).)*)\1(?=\s|$)""", re.DOTALL)  # in quotes, without such a quote in it
_COMMENT = re.compile(r"\s+#.*", re.DOTALL)
_REPLACED = re.compile(r"\$[A-Za-z_{(]")
# In a line of `.env`: what it is, and how it is found.
MISTAKES = (
    ("`export`", re.compile(r"\s*export\s")),
    ("a space before the name", re.compile(r"\s(?!\s*export\s)")),
    ("no = after the name", re.compile(r"\s*(?:export\s+)?(?!export\s)\w+\s*(?:[^=\s\w]|\s\w|$)")),
    ("a space beside the =", re.compile(r"\s*(?:export\s+)?\w+(?:\s+=|=\s)")),
    ("quotes", re.compile(r"[^\"']*[\"']")),
    ("a comment after the value", re.compile(r".*(?:\s|=)#", re.DOTALL)),
    ("a $", re.compile(r"[^$]*\$")),
    ("a backslash", re.compile(r"[^\\]*\\")),
    ("a backtick", re.compile(r"[^`]*`")),
    ("a space at the end", re.compile(r".*\s\Z", re.DOTALL)),
)


def explain_line(line: str) -> str:
    """What a line of a `.env` file has that others read differently, and the line to write. Secrets are not shown."""
    found = _LINE.match(line)
    name, value = (found["name"], _bare(found["value"])) if found else ("NAME", "")
    what = [mistake for mistake, pattern in MISTAKES if pattern.match(line)] or [
        "characters that they read differently"
    ]
    listed = " and ".join([", ".join(what[:-1]), what[-1]] if what[1:] else what)
    return f"it has {listed}, which docker, compose and Slipway read differently. Write {_corrected(name, value)}"


def explain_given(name: str, value: str) -> str:
    """Why a variable of the environment has a value that nobody meant, and what to write; empty where it may be meant."""
    quoted, commented = _WHOLE.match(value), _COMMENT.search(value)
    if quoted and not _COMMENT.sub("", value[quoted.end() :]).strip():
        what = "the quotes are part of the value: docker's --env-file keeps them"
    elif commented:
        what = "the comment is part of the value: docker's --env-file keeps it"
    elif _REPLACED.search(value) and redact(name, value) == value:  # a key may have any character
        return explain_value(name, value)
    else:
        return ""
    return f"{what}. Write {_corrected(name, _bare(value))}"


def _bare(value: str) -> str:
    """A value as it was meant: without spaces around it, a comment after it, and quotes around it all."""
    if quoted := _WHOLE.match(value):
        return quoted[2].strip()
    return "" if value.strip().startswith("#") else _COMMENT.sub("", value).strip()


def _corrected(name: str, value: str) -> str:
    line = f"{name}={value}"
    if not value or not PORTABLE.fullmatch(line):  # a $, whose value is not known here
        return f"{name}=VALUE, with the value itself"
    return f"{name}={redact(name, value)}"
