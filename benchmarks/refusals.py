"""How good the refusal detector is, beside RULE's: python -m benchmarks.refusals [DATA].

Measures on the lists of tests/reward/refusal_lists, and, where the folder DATA (../shared/data by default)
holds the benchmarks' own files, on those. The lists have shaped the rules, so their figures are no estimate
for sentences never seen; docs/rewards.md has what was found at first sight. Prints one JSON object on its
last line, with the same figures for "ours" and "rule":
    recall, precision    on the lists
    answers_flagged      share of ordinary answers taken for refusals, by benchmark and kind
    refusals_found       share of the benchmarks' own refusals found, by benchmark
    microseconds         of CPU a call, mean over the sentences of the lists
and, under "languages", recall and precision of ours by language on the lists of
tests/reward/refusal_languages: on the part that shaped the phrases, and on the part held out.
"rule" is our reading of a description of RULE's detector, one regular expression searched anywhere in the
response. The description names its families and some of their words; the rest are filled in so that it finds
the refusals that RULE trains on. None of its text is RULE's.

A list is a file of lines that begin with "+" (a refusal) or "-" (an answer), then "!" where the detector is
known to be wrong; "#" starts a comment, and a backslash with "n" stands for a line break. The first comments
say how the list was written and what the detector of that day made of it at first sight. In a list of a
language the part held out follows the comment "# held out".
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reward.refusal import is_refusal

Detector = Callable[[str], bool]
ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "tests" / "reward" / "refusal_lists"
LANGUAGE_LISTS = ROOT / "tests" / "reward" / "refusal_languages"
HELD_OUT = "# held out"
DATA = ROOT.parent / "shared" / "data"

RULE = re.compile(
    r"(?:don't|doesn't|do not|does not|didn't|doesn't seem to).*"
    r"(?:know|have|hold|possess|contain|cover|include|extend)"
    r"|not.*(?:sure|certain|familiar|aware|able|informed|versed|equipped|privy|briefed|acquainted)"
    r"|not (?:the (?:best|right)|information|within|in my)|(?:hasn't|not) been (?:included|educated)"
    r"|no (?:idea|insight|information|clue|data|knowledge|familiarity|enlightenment)"
    r"|(?:haven't|yet to) (?:be )?(?:learn|inform|brief|encounter|train|the faintest|been)"
    r"|(?:beyond|outside|out of|within).*(?:knowledge|capabilities|expertise|scope|reach)"
    r"|at a (?:loss|disadvantage)|(?:lack|missing)\w* .*(?:information|insight|specifics)"
    r"|can't (?:provide|say|help|shed)|decline|blank on|limited to|come up short|blind spot|uncharted"
    r"|unable to (?:provide|answer|access)|unaware|unknown to|mystery to me|in the dark"
    r"|unfortunately|clueless|stumped|drawing a blank|need to (?:look up|check|verify)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a list."""

    text: str
    refuses: bool
    known_wrong: bool


def main() -> None:
    """Measure both detectors and print the figures."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    if not data.is_dir():
        print(f"no folder {data}: figures on the benchmarks' own files are left out")
    figures = {"ours": measure(is_refusal, data), "rule": measure(_rule, data)}
    for name, row in figures.items():
        print(f"{name:5} recall {row['recall']:.3f}, precision {row['precision']:.3f} on the lists")
    print("language | sentences | recall, precision seen | recall, precision held out")
    languages = measure_languages(is_refusal)
    for code, parts in languages.items():
        seen, held_out = parts["seen"], parts["held out"]
        print(
            f"{code} | {seen['sentences']} + {held_out['sentences']} | {seen['recall']:.2f}, "
            f"{seen['precision']:.2f} | {held_out['recall']:.2f}, {held_out['precision']:.2f}"
        )
    print(json.dumps({**figures, "languages": languages}))


def read_lists() -> dict[str, list[Sentence]]:
    """The sentences of each list, by the list's name, in order."""
    return {path.stem: _read(path.read_text(encoding="utf-8")) for path in sorted(LISTS.glob("*.txt"))}


def read_language_lists() -> dict[str, dict[str, list[Sentence]]]:
    """The sentences "seen" and "held out" by language, and those of "all" languages together."""
    lists = {}
    for path in sorted(LANGUAGE_LISTS.glob("*.txt")):
        seen, held_out = path.read_text(encoding="utf-8").split(HELD_OUT)
        lists[path.stem] = {"seen": _read(seen), "held out": _read(f"#{held_out}")}
    together = {part: [s for each in lists.values() for s in each[part]] for part in ("seen", "held out")}
    return {**lists, "all": together}


def measure_languages(detector: Detector) -> dict[str, dict[str, dict[str, float]]]:
    """Sentences, recall and precision by language and part of its list."""
    return {
        code: {part: _quality(detector, sentences) for part, sentences in parts.items()}
        for code, parts in read_language_lists().items()
    }


def measure(detector: Detector, data: Path) -> dict[str, object]:
    """The figures of one detector, as the top of this module names them."""
    sentences = [sentence for sentences in read_lists().values() for sentence in sentences]
    detector(sentences[0].text)  # what is read and compiled once
    began = time.process_time()
    quality = _quality(detector, sentences)
    seconds = time.process_time() - began
    return {
        "recall": quality["recall"],
        "precision": quality["precision"],
        "answers_flagged": _shares(detector, _answers(data)),
        "refusals_found": _shares(detector, _refusals(data)),
        "microseconds": round(1e6 * seconds / len(sentences)),
    }


def _quality(detector: Detector, sentences: Sequence[Sentence]) -> dict[str, float]:
    verdicts = [detector(sentence.text) for sentence in sentences]
    found = sum(verdict and sentence.refuses for verdict, sentence in zip(verdicts, sentences, strict=True))
    return {
        "sentences": len(sentences),
        "recall": round(found / sum(sentence.refuses for sentence in sentences), 4),
        "precision": round(found / sum(verdicts), 4),
    }


def _read(text: str) -> list[Sentence]:
    return [_sentence(line) for line in text.split("\n") if line and not line.startswith("#")]


def _sentence(line: str) -> Sentence:
    mark, text = line.split(" ", 1)
    return Sentence(text.replace("\\n", "\n"), refuses=mark[0] == "+", known_wrong=mark.endswith("!"))


def _rule(text: str) -> bool:
    return RULE.search(text) is not None


def _shares(detector: Detector, texts: Iterator[tuple[str, Sequence[str]]]) -> dict[str, float]:
    return {name: round(sum(map(detector, group)) / len(group), 4) for name, group in texts if group}


def _answers(data: Path) -> Iterator[tuple[str, list[str]]]:
    yield "rwku boundary", _rwku(data, "<normal>")
    yield "muse boundary", [row["gold"] for row in _rows(data, "muse_books/boundary_*.json")]
    yield "muse forget", [row["answer"] for row in _rows(data, "muse_books/forget_train_qa*.json")]
    yield "muse probes", [row["answer"] for row in _rows(data, "muse_books/knowmem/*.json")]
    for name in ("forget01", "retain99*", "retain_perturbed", "real_authors*", "world_facts*"):
        yield f"tofu {name.strip('*')}", [row["answer"] for row in _rows(data, f"tofu/{name}.json")]


def _refusals(data: Path) -> Iterator[tuple[str, list[str]]]:
    yield "rwku", _rwku(data, "<reject>")
    yield "rwku templates", list(_rows(data, "rwku/targets/*/idk_target.json"))
    yield "muse templates", list(_rows(data, "muse_books/idk_target.json"))
    yield (
        "tofu templates",
        [line for path in data.glob("tofu/idontknow.jsonl") for line in path.read_text().split("\n") if line],
    )


def _rwku(data: Path, marker: str) -> list[str]:
    rows = _rows(data, "rwku/targets/*/rl_rejection_with_fb_neighbor_target.json")
    return [row["solution"][1] for row in rows if row["solution"][0] == marker]


def _rows(data: Path, pattern: str) -> Iterator:
    """The rows of JSON arrays, and of JSON lines."""
    for path in sorted(data.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        yield from json.loads(text) if text.lstrip().startswith("[") else map(json.loads, text.splitlines())


if __name__ == "__main__":
    main()
