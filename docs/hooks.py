"""What the site adds to docs/: pages that lie elsewhere, the code that they link to, and the README's beginning as front page.

All links lead to the site itself, whether the repository has an address or not. So MkDocs looks at each of them, and at the
heading that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
# Pages of the site that do not lie in docs/: the file, by the name that it has there.
GUIDES = {
    "image.md": "images/README.md",
    "compose.md": "compose/README.md",
    "slurm.md": "slurm/README.md",
    "k8s.md": "k8s/README.md",
    "one-page.md": "README.md",
    "programs.md": "AGENTS.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "vulnerabilities.md": "SECURITY.md",
    "results.md": "bench/RESULTS.md",
    "results-gpu.md": "bench/RESULTS-GPU.md",
}
PAGES = {file: page for page, file in GUIDES.items()}
LINK = re.compile(r"\[([^][]*)\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*)?\)")
FRONT = re.compile(r"^<!-- front page -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)  # parts of the README
HERE = "<!-- what the README marks as its front page -->\n"  # in index.md
CELL, NAME = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL), re.compile(r"<code>(?=[^<\s]{1,32}</code>)")
LANGUAGES = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".yaml": "yaml", ".toml": "toml", ".md": "markdown"}
PICTURES = (".svg", ".png")


def on_files(files: Any, *, config: Any) -> Any:
    """The files of the site, with the guides and what all pages link to."""
    for page, file in GUIDES.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    texts = [*ROOT.glob(f"{DOCS}*.md"), *(ROOT / file for file in PAGES)]
    for target in sorted({target for page in texts for target in linked(page)}):
        if not target.startswith(DOCS) and target not in PAGES:
            made = {"abs_src_path": str(ROOT / target)} if target.endswith(PICTURES) else {"content": shown(target)}
            files.append(File.generated(config, place(target), **made))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """What MkDocs turns into a page."""
    name = page.file.src_uri
    if name.startswith("code/"):
        return markdown
    ours = led(markdown, str(PurePosixPath(GUIDES.get(name, f"{DOCS}{name}")).parent))
    return ours.replace(HERE, led("\n".join(FRONT.findall((ROOT / "README.md").read_text(encoding="utf-8"))), ""))


def on_page_content(html: str, **_: Any) -> str:
    """A page's HTML. In a cell of a table, Markdown keeps the backslash of a \\| in code, and browsers break --option-names."""
    return CELL.sub(lambda cell: NAME.sub('<code class="name">', cell[0].replace("\\|", "|")), html)


def on_nav(nav: Any, *, config: Any, **_: Any) -> Any:
    """The pages in their order, kept for `on_post_build`."""
    config.extra["nav"] = nav
    return nav


def on_post_build(*, config: Any) -> None:
    """Write llms.txt (llmstxt.org), from which programs that read the site learn what each page is about."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in (item for item in config.extra["nav"] if item.is_section):
        lines += ["", f"## {section.title}", ""]
        lines += [f"- [{page.title}]({page.url}): {first_sentence(page.markdown)}" for page in section.children]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def first_sentence(markdown: str) -> str:
    """The first sentence of a page, without its links."""
    for paragraph in markdown.split("\n\n"):
        text = " ".join(re.sub(r"\[([^][]*)\]\([^)]*\)", r"\1", paragraph).split())
        sentence = re.split(r"(?<=[.:])\s(?=[A-Z`])", text)[0]
        if re.match(r"[A-Z]|`[^`]", sentence) and len(sentence) > 30 and "·" not in sentence:
            return sentence
    return ""


def linked(page: Path) -> Iterator[str]:
    """The files and folders of the checkout that a page links to."""
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = normpath(page.parent.relative_to(ROOT) / link[2])
        if (ROOT / target).exists():
            yield target


def led(markdown: str, folder: str) -> str:
    """Text that lies in `folder`, with its links as they are on the site."""

    def lead(link: re.Match[str]) -> str:
        target = normpath(PurePosixPath(folder, link[2]))
        found = (ROOT / target).exists()  # what is not there MkDocs complains of
        return f"[{link[1]}]({place(target) if found else link[2]}{link[3] or ''})"

    return LINK.sub(lead, markdown)


def place(target: str) -> str:
    """Where a file or folder of the checkout is on the site."""
    if target in PAGES or target.startswith(DOCS):
        return PAGES.get(target, target.removeprefix(DOCS))
    shown_as = re.sub(r"(^|/)\.", r"\1dot-", target)  # MkDocs leaves out what begins with a dot
    return f"code/{shown_as}{'' if target.endswith(PICTURES) else '.md'}"


def shown(target: str) -> str:
    """A page with a file of the checkout, or with the names in a folder."""
    file = ROOT / target
    text = (
        "\n".join(sorted(f"{inside.name}{'/' if inside.is_dir() else ''}" for inside in file.iterdir()))
        if file.is_dir()
        else file.read_text(encoding="utf-8")
    )
    language = LANGUAGES.get(file.suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {target}\n\n~~~~~~~~ {language}\n{text.rstrip()}\n~~~~~~~~\n"
