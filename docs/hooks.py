"""Links of the pages to what lies outside docs/: on the site they lead to the repository, and without one they are plain text."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^][]*)\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """What MkDocs turns into a page."""
    repository = config["repo_url"]
    return OUTSIDE.sub(rf"[\1]({repository}/blob/main/\2)" if repository else r"\1", markdown)
