"""YAML as people write it, that every reader takes the same: Compose, kubectl and kustomize know other versions than PyYAML."""

import re
from typing import Any

import yaml

from slipway.protocol.errors import LaunchError

# PyYAML quotes what YAML 1.1 takes for something else than text. In Go's readers 1e-3 and 0o17 are numbers, too, and y is yes.
_AMBIGUOUS = re.compile(r"[-+]?\.?\d.*|[yYnN]")


def yaml_text(*documents: Any) -> str:
    """Return the documents in block style, keys in their order. Raises LaunchError (78) for what is no Unicode."""
    return yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        explicit_start=len(documents) > 1,
    )


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """What stands at several places is written out at each."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """The items of a list stand further in than its name."""
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LaunchError(f"{text!r} holds bytes that are no UTF-8, and such a file no others. Rename it.") from None
    quoted = not text.isprintable() or _AMBIGUOUS.fullmatch(text)  # between " " all that is not printable is escaped
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


def _represent_none(dumper: yaml.SafeDumper, _: None) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:null", "")


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(type(None), _represent_none)
