"""Whether the sentences of docs/results.md, savings.md, larger.md and survival.md and of the README are so.

    python -m benchmarks.study.claims benchmarks/study/results.parquet [--page FILE] [--readme FILE] ...

RESULTS has the runs at one learning rate, --planned those at tuned learning rates, --larger those of the
larger world, and --attacks the attacks.
Prints each part of a sentence of `statements` that does not stand on its page, as it would have to stand,
and each number of a page's text that neither these nor what is given account for; fails if there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.study.attacked.results import read as read_attacks
from benchmarks.study.attacked.statements import in_survival
from benchmarks.study.larger.statements import in_larger, in_pages
from benchmarks.study.planned import statements as planned
from benchmarks.study.planned.results import read_results as read_planned
from benchmarks.study.planned.statements import Answers
from benchmarks.study.results import read_results
from benchmarks.study.statements import page_claims, readme_claims

FILES = {
    "planned": "benchmarks/study/planned.parquet",
    "page": "docs/results.md",
    "savings": "docs/savings.md",
    "larger": "benchmarks/study/larger/results.parquet",
    "larger-page": "docs/larger.md",
    "attacks": "benchmarks/study/attacked/results.parquet",
    "survival": "docs/survival.md",
    "readme": "README.md",
}
"""Options that name a file, with their defaults."""
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
)
"""Numbers of the page that are not worked out from the runs."""
GIVEN_IN_SAVINGS = ("have 0.77 million parameters in `many` and 2.2 million in", "is 0.6 of the tokens")
GIVEN_IN_LARGER = ("`10m` has 10.4 million parameters", "Student's 95 % interval")
GIVEN_IN_README = ("The models have at most 2.2 million parameters",)
GIVEN_IN_SURVIVAL = ("lies within -0.1 and 0.1",)
IN_SURVIVAL = "## Does replay change what survives?"
PLANNED_IN_README, IN_README = (
    "Once every method has its own learning rate,",
    "At one learning rate for all methods,",
)
"""How the README's paragraphs on the two studies begin."""
_NUMBER = re.compile(r"(?<![\w.^-])[+-]?\d*\.\d+|\d+ %|\b\d+ of \d+\b|\b\d+ M tokens")
_NOT_TEXT = re.compile(
    r"<!-- table: .*?<!-- end of table -->|^\|.*?$|^ {4}\S.*?$|!?\[[^\]]*\]\([^)]*\)|`[^`\n]*`",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Page:
    """A page, or a part of one, with what has to stand there and the numbers that may stand there too."""

    name: str
    text: str
    claims: Sequence[str]
    given: Sequence[str] = GIVEN

    def wrong(self) -> list[str]:
        """What is not as in the runs, in sentences."""
        absent = [f"{self.name}: not there: {text}" for text in missing(self.text, self.claims)]
        more = unheld(self.text, self.claims, self.given)
        return absent + [f"{self.name}: not from the runs: {text}" for text in more]


def main() -> None:
    """Check the pages."""
    options = parser().parse_args()
    try:
        found = pages(options)
        wrong = [text for page in found for text in page.wrong()]
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if wrong:
        sys.exit("\n".join(f"error: {each}" for each in wrong))
    count = sum(len(page.claims) for page in found)
    names = ", ".join(dict.fromkeys(page.name for page in found))
    print(f"{names}: {count} parts of sentences as in the runs")


def parser() -> argparse.ArgumentParser:
    """A file of results, and the other files."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.study.claims", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("results", type=Path)
    for name, default in FILES.items():
        made.add_argument(f"--{name}", type=Path, default=Path(default), help="default: %(default)s")
    return made


def pages(options: argparse.Namespace) -> list[Page]:
    """The pages with what the runs say.

    Raises:
        ValueError: a file is no file of runs, or lacks some, or a page lacks a part.
        OSError: a file cannot be read.
    """
    runs, answers = read_results(options.results), Answers(read_planned(options.planned))
    of_larger = read_planned(options.larger)
    both = (*planned.in_results(answers), *in_pages(of_larger))
    return [
        _page(options.page, _whole, [*page_claims(runs), *both], GIVEN),
        _page(options.savings, opening, planned.in_savings(answers), GIVEN_IN_SAVINGS),
        _page(options.larger_page, opening, in_larger(of_larger), GIVEN_IN_LARGER),
        _page(options.survival, _attacks, in_survival(read_attacks(options.attacks)), GIVEN_IN_SURVIVAL),
        *readme_pages(
            options.readme, readme_claims(runs), [*planned.in_readme(answers), *in_pages(of_larger)]
        ),
    ]


def readme_pages(readme: Path, study: Sequence[str], tuned: Sequence[str]) -> list[Page]:
    """The README's two paragraphs. Raises ValueError where there is none of them, OSError as `pages`."""
    return [
        _page(readme, lambda text: paragraph(text, IN_README), study, GIVEN),
        _page(readme, lambda text: paragraph(text, PLANNED_IN_README), tuned, GIVEN_IN_README),
    ]


def _page(file: Path, part: Callable[[str], str], claims: Sequence[str], given: Sequence[str]) -> Page:
    return Page(str(file), part(file.read_text(encoding="utf-8")), claims, given)


def _whole(page: str) -> str:
    return page


def _attacks(survival: str) -> str:
    return section(survival, IN_SURVIVAL)


def opening(page: str) -> str:
    """What stands before a page's first section."""
    return page.partition("\n## ")[0]


def section(page: str, heading: str) -> str:
    """What stands below a heading of the second level; nothing where it is not on the page."""
    return page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]


def paragraph(readme: str, start: str) -> str:
    """The README's paragraph that begins so.

    Raises:
        ValueError: there is none.
    """
    found = [part for part in readme.split("\n\n") if one_line(part).startswith(start)]
    if not found:
        raise ValueError(f"the README has no paragraph that begins with {start!r}")
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
