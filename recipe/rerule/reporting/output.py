"""The files of a report: page, Markdown and the folder of figures and tables, each written whole.

All three say that they are a report's, so that a later report replaces them and nothing else.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from recipe.rerule.io import (
    DRAFT,
    Kind,
    check_may_replace,
    check_owned,
    draft_folder,
    put_in_place,
    recover,
    stamp,
)
from recipe.rerule.reporting.document import Figure, Report, Table, csv_text, html_page, markdown_page

FILES = Kind("rerule/report", "contents.json")
"""The folder of figures and tables."""
_MARK_HTML = '<meta name="generator" content="rerule/report">'
"""Stands in templates/page.html."""
_MARK_MARKDOWN = "<!-- rerule/report -->"


def page_path(out: Path) -> Path:
    """`out` itself where it names an HTML file, else report.html in that folder."""
    return out if out.suffix == ".html" else out / "report.html"


def check_free(page: Path, overwrite: bool) -> None:
    """Refuse to replace what was not asked to be replaced, or is not a report's.

    Raises ValueError: a part of the report exists, unless `overwrite` is given and it is an earlier report's.
    """
    folder = page.with_suffix("")
    recover(folder)
    for path in (page, page.with_suffix(".md"), folder):
        if os.path.lexists(path):
            check_may_replace(path, overwrite, "--out")
    for path in (page, page.with_suffix(".md")):
        if os.path.lexists(path) and not _is_ours(path):
            raise _not_ours(path)
    _owned_files(folder)


def write_report(report: Report, page: Path, overwrite: bool) -> None:
    """Write the page, its Markdown and the folder of files; each appears complete, the page last.

    Raises ValueError: as `check_free`; nothing is replaced then.
    """
    folder = page.with_suffix("")
    with draft_folder(folder) as scratch:
        draft = scratch / DRAFT
        (draft / "files").mkdir()
        for part in (part for section in report.sections for part in section.parts):
            if isinstance(part, Figure):
                (draft / "files" / f"{part.name}.png").write_bytes(part.png)
            elif isinstance(part, Table):
                (draft / "files" / f"{part.name}.csv").write_text(csv_text(part), encoding="utf-8")
        marker = stamp(FILES, [path.name for path in (draft / "files").iterdir()])
        (draft / "files" / FILES.marker).write_text(f"{json.dumps(marker, indent=1)}\n", encoding="utf-8")
        markdown = f"{markdown_page(report, folder.name)}\n{_MARK_MARKDOWN}\n"
        (draft / "page.md").write_text(markdown, encoding="utf-8")
        (draft / "page.html").write_text(html_page(report), encoding="utf-8")
        check_free(page, overwrite)
        put_in_place(scratch, draft / "files", folder, _owned_files(folder))
        (draft / "page.md").replace(page.with_suffix(".md"))
        (draft / "page.html").replace(page)


def _owned_files(folder: Path) -> list[str]:
    """What is in the folder of figures and tables, all of it a report's; [] where there is none.

    Raises ValueError naming the first file that is not.
    """
    if not os.path.lexists(folder):
        return []
    if folder.is_symlink() or not folder.is_dir():
        raise _not_ours(folder)
    return check_owned(folder, FILES)


def _not_ours(path: Path) -> ValueError:
    return ValueError(f"{path} was not written by a report, so it is not replaced; give another --out")


def _is_ours(path: Path) -> bool:
    """Whether a page or its Markdown was written by a report, and is no link."""
    if path.is_symlink() or not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".md":
        return text.endswith(f"\n{_MARK_MARKDOWN}\n")
    head, end, _ = text.partition("</head>")
    return bool(end) and f"{_MARK_HTML}\n" in head
