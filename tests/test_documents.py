"""Every document: phrases that readers stumbled over do not come back. `make docs` follows the links."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")])
_CODE = re.compile(r"```.*?```|^ {4}[^\n]*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
PHRASES = {
    r"\bours\b": "name the thing: ReRULE's, used here, written for ReRULE",
    r"\bat first sight\b": "say when: on first evaluation, before tuning",
    r"\b(?:is|are) for the caller to\b": "the caller must",
    r"\bof (?:its|their|one's) own accord\b": "without being asked",
    r"\bgoes by `": "uses",
    r"\bthat is how\b": "this",
    r"\bfacts? of (?:its|their) own\b": "a separate fact",
    r"\b(?:just|simply|obviously|of course)\b": "leave the word out",
    r"\bthought of after\b": "post-hoc",
    r"\bbeside\b": "in addition to, next to, compared with",
    r"\bof (?:its|their|our) own\b": "separate; or leave it out",
    r"\bso left\b": "if this is unchanged",
    r"\bon the way\b": "during training, in between",
    r"\bcomes? to nothing\b": "has no effect, fails",
    r"\bvoid\b": "cancels",
    r"\bwho leaves\b": "which one leaves",
    r"\bdo(?:es)? most\b": "most of the gain comes from",
    r"\bwhose buffers\b": "which runs a buffer may be loaded into",
    r"\bread it as a\b": "it demonstrates",
    r"\bleaves? the rest\b": "name what handles the others",
    r"\bonly say when\b": "only decide at which steps",
    r"\boverlap says nothing\b": "is not evidence",
    r"\bwhere \w+ starts late\b": "when",
}
"""Regular expressions, and what to write instead."""


def told(path: Path) -> list[str]:
    """Where a document's sentences have such a phrase; code is left out."""
    text = _CODE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
    return [
        f"{path.name}:{number}: {match[0]!r}; {instead}"
        for number, line in enumerate(text.splitlines(), start=1)
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, line, re.IGNORECASE)
    ]


def test_no_phrase_that_readers_stumbled_over() -> None:
    assert [line for path in DOCUMENTS for line in told(path)] == []


def test_a_phrase_is_found_in_sentences_and_not_in_code(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# `ours`\n\n    ours\nOurs is best.\n")
    assert [line.partition(";")[0] for line in told(tmp_path / "page.md")] == ["page.md:4: 'Ours'"]


def test_the_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text()))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= linked
