"""Whether the sentences of docs/results.md and the README say what the runs do.

    python -m benchmarks.study.claims benchmarks/study/results.parquet [--page FILE] [--readme FILE]

Prints each part of a sentence of `statements` that does not stand on its page, as it would have to stand,
and each number of the page's text that neither these nor GIVEN account for; fails if there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.study.results import read_results
from benchmarks.study.statements import page_claims, readme_claims

GIVEN = (
    # Settings and definitions.
    "(40 % in the worlds of people)",
    "whose group was below 0.6",
    "with its 95 % bootstrap interval over seeds",
    "the worlds whose 95 % interval excludes 0",
    "over eight seeds cannot reach 0.05",
    "nine pairs can reach 0.05 with nine seeds",
    "when its retain recall is at least 0.5",
    "with the exact 95 % interval of the share",
    "how often the 95 % interval holds",
    "95 % intervals exclude 0",
    # Of single runs that are not in the file, as the page says where they stand.
    "stage 1 keeps 0.99 of retain",
    "the 2 M model at 4.5e-5 with naming (forget 0.06, retain 1.00, unseen 0.93",
    "0.11 / 0.80 / 0.67, early-hard reward 0.57 0.73 0.82 0.87 at steps 10 to 40, hard groups 0.42 in the "
    "first quarter and 0.10 in the last",
    "models of 0.7 and 2 million parameters",
    "means that the 95 % interval over seeds excludes 0",
)
"""Numbers of the page that are not worked out from the runs."""
_NUMBER = re.compile(r"(?<![\w.^-])[+-]?\d*\.\d+|\d+ %|\b\d+ of \d+\b|\b\d+ M tokens")
_NOT_TEXT = re.compile(
    r"<!-- table: .*?<!-- end of table -->|^\|.*?$|^ {4}\S.*?$|!?\[[^\]]*\]\([^)]*\)|`[^`\n]*`",
    re.DOTALL | re.MULTILINE,
)


def main() -> None:
    """Check both pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.claims", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"), help="default: %(default)s")
    parser.add_argument("--readme", type=Path, default=Path("README.md"), help="default: %(default)s")
    options = parser.parse_args()
    try:
        runs = read_results(options.results)
        page, readme = (path.read_text(encoding="utf-8") for path in (options.page, options.readme))
        claims = page_claims(runs)
        wrong = [f"{options.page}: not there: {text}" for text in missing(page, claims)]
        wrong += [f"{options.page}: not from the runs: {text}" for text in unheld(page, claims)]
        of_study, study = readme_claims(runs), study_paragraph(readme)
        wrong += [f"{options.readme}: not there: {text}" for text in missing(study, of_study)]
        wrong += [f"{options.readme}: not from the runs: {text}" for text in unheld(study, of_study)]
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if wrong:
        sys.exit("\n".join(f"error: {each}" for each in wrong))
    print(f"{options.page}, {options.readme}: {len(claims)} parts of sentences as in {options.results}")


def study_paragraph(readme: str) -> str:
    """The README's paragraph that sums the page up.

    Raises:
        ValueError: there is none.
    """
    found = [part for part in readme.split("\n\n") if part.startswith("Whether replay helps is measured in")]
    if not found:
        raise ValueError("the README has no paragraph that begins with 'Whether replay helps is measured in'")
    return found[0]


def missing(page: str, claims: Iterable[str]) -> list[str]:
    """The claims that do not stand on the page."""
    text = one_line(page)
    return [claim for claim in claims if one_line(claim) not in text]


def unheld(page: str, claims: Sequence[str], given: Sequence[str] = GIVEN) -> list[str]:
    """The numbers of the page's text that stand in no claim and nothing given, with what is around them."""
    text = one_line(page_text(page))
    held = set[int]()
    for part in (one_line(page_text(part)) for part in (*claims, *given)):
        for start in places(text, part):
            held |= set(range(start, start + len(part)))
    return [
        text[max(0, found.start() - 40) : found.end() + 20]
        for found in _NUMBER.finditer(text)
        if not held.issuperset(range(found.start(), found.end()))
    ]


def page_text(page: str) -> str:
    """A page without tables, code and links."""
    return _NOT_TEXT.sub("", page)


def places(text: str, part: str) -> Iterator[int]:
    """Where a part begins in a text."""
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + 1)


def one_line(text: str) -> str:
    """The text with each white space one blank."""
    return " ".join(text.split())


if __name__ == "__main__":
    main()
