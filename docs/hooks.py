"""What the site adds to docs/: the guides that lie beside what they are about, and where links lead there.

A link to a file that is not on the site leads to the repository; where none is known it is plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
# Pages of the site that do not lie in docs/: the file, by the name that it has there.
GUIDES = {
    "image.md": "images/cuda12/README.md",
    "compose.md": "compose/README.md",
    "slurm.md": "slurm/README.md",
    "k8s.md": "k8s/README.md",
}
PAGES = {file: page for page, file in GUIDES.items()}
LINK = re.compile(r"\[([^][]*)\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """The files of the site, with the guides."""
    for page, file in GUIDES.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """What MkDocs turns into a page."""
    name = page.file.src_uri
    folder = PurePosixPath(GUIDES.get(name, f"{DOCS}{name}")).parent

    def lead(link: re.Match[str]) -> str:
        text, target, anchor = link[1], normpath(folder / link[2]), link[3] or ""
        if target in PAGES or (target.startswith(DOCS) and (ROOT / target).suffix in (".md", ".svg")):
            return f"[{text}]({PAGES.get(target, target.removeprefix(DOCS))}{anchor})"
        return f"[{text}]({config['repo_url']}/blob/main/{target}{anchor})" if config["repo_url"] else text

    return LINK.sub(lead, markdown)
