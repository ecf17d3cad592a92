"""What the site needs besides the documents here: README.md and its neighbours as pages (`hooks` of mkdocs).

In the repository these documents stand at the top, where readers of a repository look for them. Their links
are changed to those of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Document at the top to its page."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the documents at the top as pages. (mkdocs calls this by its name.)"""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=_for_site((ROOT / name).read_text(), "docs/")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links of a document in docs/ to the documents at the top. (mkdocs calls this by its name.)"""
    return _for_site(markdown, "")


def _for_site(text: str, folder: str) -> str:
    """The text with links to pages; of links to other files of the repository only the words stay.

    Args:
        folder: where the site's documents are as seen from this one, such as "docs/".
    """

    def changed(found: re.Match[str]) -> str:
        image, words, target, anchor = found.groups()
        name = target.removeprefix("../")
        if "://" in target:
            return found[0]
        if name in PAGES:
            return f"{image}[{words}]({PAGES[name]}{anchor or ''})"
        if folder and target.startswith(folder):
            return f"{image}[{words}]({target.removeprefix(folder)}{anchor or ''})"
        return words if folder or target.startswith("../") else found[0]

    return _LINK.sub(changed, text)
