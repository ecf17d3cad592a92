"""The files of a report: page, Markdown and the folder of figures and tables, each written whole.

All three say that they are a report's, so that a later report replaces them and nothing else. Those of
release 0.1.0 do not say so; they are known by what is in them.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from data_prep.atomic import check_may_replace, put_in_place
from data_prep.drafts import DRAFT, draft_folder, recover
from data_prep.ownership import Kind, check_owned, paths_in, stamp
from recipe.rerule.reporting.csv_files import csv_text
from recipe.rerule.reporting.document import Report
from recipe.rerule.reporting.markdown import markdown_page
from recipe.rerule.reporting.page import html_page

FILES = Kind("rerule/report", "contents.json", lambda marker: None)
"""The folder of figures and tables."""
_MARK_HTML = '<meta name="generator" content="rerule/report">'
"""Stands in templates/page.html."""
_MARK_MARKDOWN = "<!-- rerule/report -->"
_HEAD_END = "</head>"
_RELEASED_HTML = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
_RELEASED_NOTE = "Refusing is not erasing. A model that declines to answer may still hold the knowledge in"
_RELEASED_TABLES = (
    r"(results|all_metrics|targets|comparisons|storage|tau|judged|outcomes|process|choosing_outcomes|"
    r"choosing_process|compared|compared_worlds|take_off)_[\w-]+|hard_share|cost|tokens|take_off"
)


def page_path(out: Path) -> Path:
    """`out` itself where it names an HTML file, else report.html in that folder."""
    return out if out.suffix == ".html" else out / "report.html"


def check_free(page: Path, overwrite: bool) -> None:
    """Refuse to replace what was not asked to be replaced, or is not a report's.

    Raises:
        ValueError: a part of the report exists, unless `overwrite` is given and it is an earlier report's.
    """
    folder = page.with_suffix("")
    recover(folder)
    for path in (page, page.with_suffix(".md"), folder):
        if os.path.lexists(path):
            check_may_replace(path, overwrite, "--out")
    for path, known in ((page, _is_page), (page.with_suffix(".md"), _is_markdown)):
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or not known(_text(path))):
            raise _not_ours(path)
    _owned_files(folder, page)


def write_report(report: Report, page: Path, overwrite: bool) -> None:
    """Write the page, its Markdown and the folder of files; each appears complete, the page last.

    Raises:
        ValueError: as `check_free`; nothing is replaced then.
    """
    folder = page.with_suffix("")
    with draft_folder(folder) as scratch:
        draft = scratch / DRAFT
        _write_files(report, draft / "files")
        markdown = f"{markdown_page(report, folder.name)}\n{_MARK_MARKDOWN}\n"
        (draft / "page.md").write_text(markdown, encoding="utf-8")
        (draft / "page.html").write_text(html_page(report), encoding="utf-8")
        check_free(page, overwrite)
        put_in_place(scratch, draft / "files", folder, _owned_files(folder, page))
        (draft / "page.md").replace(page.with_suffix(".md"))
        (draft / "page.html").replace(page)


def _write_files(report: Report, folder: Path) -> None:
    folder.mkdir()
    for figure in report.figures():
        (folder / f"{figure.name}.png").write_bytes(figure.png)
    for table in report.tables():
        (folder / f"{table.name}.csv").write_text(csv_text(table), encoding="utf-8")
    names = [path.name for path in folder.iterdir()]
    (folder / FILES.marker).write_text(json.dumps(stamp(FILES, names), indent=1) + "\n", encoding="utf-8")


def _owned_files(folder: Path, page: Path) -> list[str]:
    """What is in the folder of figures and tables, all of it a report's; [] where there is none.

    Raises ValueError naming the first file that is not.
    """
    if not os.path.lexists(folder):
        return []
    if folder.is_symlink() or not folder.is_dir():
        raise _not_ours(folder)
    if os.path.lexists(folder / FILES.marker):
        return check_owned(folder, FILES)
    for foreign in _foreign_to_released(folder, page):
        raise ValueError(
            f"{folder / foreign} was not written by a report, so {folder} is not replaced; move it away, "
            "or give another --out"
        )
    return list(paths_in(folder))


def _not_ours(path: Path) -> ValueError:
    return ValueError(f"{path} was not written by a report, so it is not replaced; give another --out")


def _foreign_to_released(folder: Path, page: Path) -> Iterator[str]:
    """Files that 0.1.0 did not write with this page, which shows every figure and every table."""
    text = _text(page) if page.is_file() else ""
    for path in paths_in(folder):
        stem, suffix = os.path.splitext(path)
        if suffix == ".png":
            known = f'base64,{base64.b64encode((folder / path).read_bytes()).decode()}"' in text
        else:
            known = suffix == ".csv" and re.fullmatch(_RELEASED_TABLES, stem) is not None
        if not (known and _is_page(text)):
            yield path


def _is_page(text: str) -> bool:
    head, end, _ = text.partition(_HEAD_END)
    if end and f"{_MARK_HTML}\n" in head:
        return True
    return text.startswith(_RELEASED_HTML) and f'<p class="note">{_RELEASED_NOTE}' in text


def _is_markdown(text: str) -> bool:
    if text.endswith(f"\n{_MARK_MARKDOWN}\n"):
        return True
    first, _, rest = text.partition("\n\n")
    return first.startswith("# ") and rest.startswith(f"> {_RELEASED_NOTE}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
