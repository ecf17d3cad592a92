"""Every document: links lead somewhere, and phrases that readers stumbled over do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")])
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
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


def words_of(path: Path) -> str:
    """The document's sentences: code is left out, lines stay in their places."""
    return _CODE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())


def anchors(path: Path) -> set[str]:
    """The headings of a document as GitHub links to them."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    wrong = []
    for target in _LINK.findall(_CODE.sub("", path.read_text())):
        file, _, anchor = target.partition("#")
        if "://" in file or file.startswith("mailto:"):
            continue
        place = path if not file else path.parent / file
        if not place.exists() or (anchor and anchor not in anchors(place)):
            wrong.append(target)
    assert wrong == []


def test_the_readme_leads_to_every_page() -> None:
    linked = set(_LINK.findall((ROOT / "README.md").read_text()))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= linked


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_phrase_that_readers_stumbled_over(path: Path) -> None:
    found = [
        f"{path.name}:{number}: {match[0]!r}; {instead}"
        for number, line in enumerate(words_of(path).splitlines(), start=1)
        for phrase, instead in PHRASES.items()
        for match in [re.search(phrase, line, re.IGNORECASE)]
        if match
    ]
    assert found == []


@pytest.mark.parametrize(
    "sentence",
    [
        "This detector is ours.",
        "At first sight, on 35 lists, it finds most.",
        "That the probes agree is for the caller to see to.",
        "It stops of its own accord.",
        "Stage 1 goes by `experiment=NAME`.",
        "That is how the constant refusal scores.",
        "Probes without it are facts of their own.",
        "It simply works.",
        "It was thought of after seeing the runs.",
        "This is a second update beside the first.",
        "Every table has intervals of its own.",
        "If so left, runs share the noise.",
        "The mean score on the way is higher.",
        "The attack comes to nothing.",
        "An answer around it makes a refusal void.",
        "This says who leaves a full buffer.",
        "In slow, replay does most.",
        "This says whose buffers fit.",
        "This is one run: read it as a demonstration.",
        "The loop answers for raw rows and leaves the rest.",
        "The gates are there and only say when.",
        "That the intervals overlap says nothing.",
        "Where learning starts late, replay helps.",
    ],
)
def test_each_phrase_is_found_in_a_sentence_that_has_it(sentence: str) -> None:
    assert [phrase for phrase in PHRASES if re.search(phrase, sentence, re.IGNORECASE)] != []


def test_every_phrase_has_such_a_sentence() -> None:
    marks = test_each_phrase_is_found_in_a_sentence_that_has_it.pytestmark  # type: ignore[attr-defined]
    sentences = marks[0].args[1]
    unused = [p for p in PHRASES if not any(re.search(p, text, re.IGNORECASE) for text in sentences)]
    assert unused == []


def test_the_checks_find_what_they_look_for(tmp_path: Path) -> None:
    bad = tmp_path / "bad.md"
    links = "[a](#a-heading-with-code) [b](#none) [c](gone.md)"
    bad.write_text(f"# A heading: with `code`\n{links}\n\n    ours\nOurs is best.\n")
    assert anchors(bad) == {"a-heading-with-code"}
    with pytest.raises(AssertionError, match=r"#none.*gone\.md"):
        test_links_lead_to_files_and_headings_that_exist(bad)
    with pytest.raises(AssertionError, match=r"bad\.md:5: 'Ours'"):
        test_no_phrase_that_readers_stumbled_over(bad)
