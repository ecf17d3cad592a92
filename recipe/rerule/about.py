"""What a model knows about a thing, as rows of `rerule forget --facts`: `python -m recipe.rerule.about`.

1. The model says which kind of thing the target is, and writes questions about it and names of things that
   are like it. A server may write both in its place (`data_prep.generate`). prompts/about/kinds/KIND.txt has
   names and questions of some kinds, so that a small model, which writes badly, gives rows too.
2. The target is asked its own questions, and each neighbour the same questions with its own name.
3. The answer to a few-shot prompt, which is short, is the gold. It counts where most of the answers that are
   sampled from the chat say it, by the reward. A fact is all questions about a thing with one gold, or with
   one that holds it ("Napoleon", "Napoleon Bonaparte").

An answer that the model gives about names that do not exist too is a guess, and nothing to forget.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from data_prep.contract import normalise, whole
from data_prep.generate import FACTS, NEIGHBOURS, Endpoint, generate
from data_prep.generate import Request as Writing
from data_prep.generate.tasks import PROMPTS
from recipe.rerule import io
from recipe.rerule.evaluation.engine.answers import discard
from recipe.rerule.evaluation.engine.encoding import warnings
from recipe.rerule.evaluation.engine.models import (
    add_template_argument,
    check_models,
    resolve_models,
    with_template,
)
from recipe.rerule.evaluation.engine.requests import Answers, Generation, Likelihood, PromptText, Request
from recipe.rerule.evaluation.engine.run import Decoding, EngineError, run
from recipe.rerule.platform import select
from recipe.rerule.process import ArgumentParser, platform_here, positive, stoppable
from reward import compute_score
from reward.score import FUNCTION_WORDS, usable_golds

LEAST_FACTS, LEAST_RETAIN = 6, 40
"""Without so many facts about each target, which an interval takes, and questions about other things, there
are no rows."""
MADE_UP = ("Zorvania", "Jorven Tallis")
"""Names that no model knows."""
WRITTEN = 8
"""Texts of questions, and lists of names, that the model writes; a name counts that is in two lists."""
_FOLDER = PROMPTS / "about"
TEMPERATURE = 0.5
"""Of all samples. At 1, a small model hardly says the same twice; greedy answers never differ."""
_ENDINGS = frozenset(("jr", "sr", "ii", "iii", "iv", "v", "vi", "vii", "viii", "s")) | frozenset(
    ("inc", "corp", "corporation", "ltd", "llc", "plc", "co", "company")
)
"""Last words that name nobody; "s" is that of "McDonald's"."""
_GOLD_WORDS, _QUESTION_WORDS, _NAME_WORDS = 6, 30, 4
_GOLD_TOKENS, _CHAT_TOKENS, _WRITTEN_TOKENS = 16, 24, 100
_SHOWN = 10
_DESCRIPTION = """\
Write what a model knows about a thing, and about things that are like it, as a CSV of questions and of the
answers that the model itself gives. `rerule forget --about` runs this first. The same command on the same
machine writes the same rows."""
_EXAMPLE = """\
example:
  python -m recipe.rerule.about --model MODEL --about "Marie Osmond" --out osmond.csv
  rerule forget --model MODEL --facts osmond.csv --name "Marie Osmond" --out outputs/osmond

exit codes: 0; 2: the model knows too little, too little else is left, or something was refused; 1: vLLM."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as the help says."""
    with stoppable(lambda: "the same command goes on with what was answered"):
        options = _parser().parse_args(arguments)
        try:
            _about(options)
        except EngineError as error:
            return io.fail(error, 1)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)
        return 0


def add_generator(parser: argparse.ArgumentParser) -> None:
    """Declare the server that may write, as `rerule forget` has it too."""
    text = "address of an OpenAI-compatible server that writes questions and names in place of the model, as "
    text += "in http://localhost:8000/v1; its key is read from OPENAI_API_KEY"
    parser.add_argument("--generator", metavar="URL", help=text)
    parser.add_argument("--generator-model", metavar="NAME", help="name of the model at that server")


def _parser() -> ArgumentParser:
    parser = ArgumentParser("python -m recipe.rerule.about", description=_DESCRIPTION, epilog=_EXAMPLE)
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="the model: a folder, or a name on the Hub")
    add("--about", action="append", required=True, metavar="NAME", help="the target; repeat it for more")
    text = "what was forgotten before: no row about other things names it; repeat it for more"
    add("--never", action="append", default=[], metavar="NAME", help=text)
    add("--out", type=Path, required=True, metavar="FILE.csv", help="the rows")
    add_template_argument(parser)
    add("--platform", choices=("gpu", "cpu"), help="default: gpu where this machine has one, else cpu")
    numbers = {
        "--samples": (8, "answers that are sampled to each question"),
        "--agree": (5, "of them that must say the short answer"),
        "--neighbours": (24, "things that are like the target, of which is asked"),
    }
    for name, (default, text) in numbers.items():
        add(name, type=positive, default=default, metavar="N", help=f"{text} (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: %(default)s)")
    add_generator(parser)
    return parser


class TooLittleError(ValueError):
    """The model knows too little, whatever else it is asked."""


# ---- what may be asked ----

Ask = Callable[[Sequence[Request]], Answers]


@dataclass(frozen=True)
class Material:
    """What can be asked about a target and its neighbours.

    Attributes:
        kind: of the target; "" where a server wrote.
        patterns: the phrasings of each question.
        names: the neighbours.
        unsure: those whose kind the model must still say.
    """

    kind: str
    patterns: list[list[str]]
    names: list[str]
    unsure: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Question:
    """A question about `name`, the target or a neighbour; `pattern` has {name} in its place."""

    target: str
    name: str
    pattern: str

    @property
    def side(self) -> str:
        return "forget" if self.name == self.target else "retain"

    def about(self, name: str) -> str:
        return self.pattern.replace("{name}", name)

    @property
    def text(self) -> str:
        return self.about(self.name)


def _prompt(file: str, **places: str) -> PromptText:
    """The text of prompts/about/FILE.txt, which a model continues."""
    text = (_FOLDER / f"{file}.txt").read_text("utf-8").rstrip()
    return PromptText(({"role": "user", "content": text.format(**places)},), raw=True)


@cache
def kinds() -> dict[str, tuple[list[str], list[list[str]]]]:
    """Names and questions of each kind of thing that the prompt tells apart; none where no file has them."""
    found = {}
    for line in (_FOLDER / "kind.txt").read_text("utf-8").splitlines()[:-1]:
        file = _FOLDER / "kinds" / f"{(kind := line.split(': ')[1])}.txt"
        names, *lines = file.read_text("utf-8").splitlines() if file.is_file() else [""]
        found[kind] = (names.split(", ") if names else [], [one.split(" | ") for one in lines])
    return found


def _kind_requests(name: str) -> list[Request]:
    return [Likelihood(f"kind {kind}: {name}", _prompt("kind", name=name), f" {kind}") for kind in kinds()]


def _kind(name: str, answers: Answers) -> str:
    """The likeliest kind; the end of the text does not count."""
    return max(kinds(), key=lambda kind: sum(answers[f"kind {kind}: {name}"].log_probs[:-1]))


def names_it(text: str, name: str) -> bool:
    """Whether a text has the last word of a name, by which people are called too.

    What follows a comma, as in "Harry, Duke of Sussex", and an ending such as "Jr." are no such word. A name
    that ends with a function word, such as "The Who", is found whole only, and one without letters never.
    """
    words = normalise(name.partition(",")[0]).split() or normalise(name).split()
    if not words:
        return False
    while len(words) > 1 and words[-1] in _ENDINGS:
        words.pop()
    last = " ".join(words) if words[-1] in FUNCTION_WORDS else words[-1]
    return re.search(whole(last), normalise(text)) is not None


def written_by_itself(ask: Ask, targets: Sequence[str]) -> dict[str, Material]:
    """What the model writes about each target, with what the files have of its kind."""
    writes = [
        Generation(f"{what}: {one}", _prompt(what, name=one), _WRITTEN_TOKENS, (stop,), WRITTEN, TEMPERATURE)
        for one in targets
        for what, stop in (("questions", "\n\n"), ("neighbours", "\n"))
    ]
    answers = ask([*writes, *(request for target in targets for request in _kind_requests(target))])
    found = {}
    for target in targets:
        names, patterns = kinds()[kind := _kind(target, answers)]
        lists = [text.split(",") for text in answers[f"neighbours: {target}"].samples]
        said = Counter(one for names in lists for one in {name.strip(" .") for name in names})
        own = [name for name, times in said.most_common() if times > 1 and name[:1].isalnum()]
        own = [name for name in own if not name[0].islower()]
        own = [name for name in own if name not in names and len(name.split()) <= _NAME_WORDS]
        own = [name for name in own if not names_it(target, name)]  # "Albert" is no other person
        texts = answers[f"questions: {target}"].samples
        lines = [[line] for text in texts for line in text.splitlines()]
        found[target] = Material(kind, [*patterns, *lines], [*own, *names], frozenset(own))
    return found


def written_by_server(endpoint: Endpoint, targets: Sequence[str], neighbours: int) -> dict[str, Material]:
    """What a server writes about each target. Raises ValueError where it does not."""
    found = {}
    for target in targets:
        facts = Writing(FACTS, {"name": target, "count": 16})
        names = Writing(NEIGHBOURS, {"name": target, "count": neighbours})
        told = generate([facts, names], endpoint, Path("outputs/generated"))
        for failure in told.failures:
            raise ValueError(f"--generator: {failure.inputs}: {failure.reason}")
        questions, like = (answer or {} for answer in told.results)
        found[target] = Material("", [fact["questions"] for fact in questions["facts"]], like["names"])
    return found


def questions_of(
    materials: Mapping[str, Material], neighbours: int, seed: int, never: Sequence[str] = ()
) -> list[Question]:
    """All phrasings about each target; about each neighbour one phrasing of each question, drawn.

    Left out are lines that are no question about the target alone, and neighbours that name a target or one
    of `never`.
    """
    found: dict[str, Question] = {}
    for target, material in materials.items():
        rng = random.Random(f"{seed} {target}")
        patterns = [[_pattern(one, target) for one in group] for group in material.patterns]
        groups = [kept for group in patterns if (kept := [one for one in group if one])]
        names = [
            name
            for name in dict.fromkeys(material.names)
            # "Ford" is no neighbour of "Ford Motor Company", nor is it the other way round.
            if not any(names_it(name, one) or names_it(one, name) for one in (*materials, *never))
        ]
        own = [name for name in names if name in material.unsure][:neighbours]
        others = [name for name in names if name not in material.unsure]
        own += rng.sample(others, min(len(others), neighbours - len(own)))
        asked = [Question(target, target, pattern) for group in groups for pattern in group]
        asked += [Question(target, name, rng.choice(group)) for name in own for group in groups]
        for question in asked:
            found.setdefault(normalise(question.text), question)
    return list(found.values())


def _pattern(phrase: str, target: str) -> str:
    """A question with {name} where it names the target; "" where it is none, or names it otherwise."""
    phrase = re.sub(whole(target), "{name}", phrase.strip(" -*"), flags=re.IGNORECASE)
    asks = "{name}" in phrase and phrase.endswith(tuple("?.？。؟;")) and not names_it(phrase, target)
    return phrase if asks and len(phrase.split()) <= _QUESTION_WORDS else ""


# ---- what the model answers ----


def requests_of(questions: Sequence[Question], unsure: Sequence[str], samples: int) -> Iterator[Request]:
    """The short answer and the sampled ones to each question, the short ones of made-up names, and kinds."""
    for question in questions:
        for name in (question.name, *(MADE_UP if question.side == "forget" else ())):
            prompt = _prompt("answer", question=question.about(name))
            yield Generation(f"short: {question.about(name)}", prompt, _GOLD_TOKENS, ("\n",))
        prompt = PromptText(({"role": "user", "content": question.text},))
        yield Generation(f"chat: {question.text}", prompt, _CHAT_TOKENS, (), samples, TEMPERATURE)
    for name in unsure:
        yield from _kind_requests(name)


def row_of(
    question: Question, materials: Mapping[str, Material], answers: Answers, never: Sequence[str] = ()
) -> dict[str, str]:
    """The row of a question, with how many samples `agree`; or `why` there is none."""
    gold, *made_up = (
        answers[f"short: {question.about(name)}"].text.strip().rstrip(".")
        for name in (question.name, *(MADE_UP if question.side == "forget" else ()))
    )
    material, text, forget = materials[question.target], question.text, question.side == "forget"
    why = ""
    if question.name in material.unsure and _kind(question.name, answers) != material.kind:
        why = "another kind of thing"
    elif not normalise(gold) or len(gold.split()) > _GOLD_WORDS:
        why = "no short answer"
    elif not usable_golds([gold], text, question.name):
        why = "a refusal, or in the question"
    elif not forget and any(names_it(f"{text} {gold}", one) for one in (*materials, *never)):
        why = "names the target"
    elif made_up and all(normalise(one) == normalise(gold) for one in made_up):
        why = "the same of made-up names"
    if why:
        return {"side": question.side, "why": why}
    truth = {"type": "retain", "golds": [gold], "keyword": ""}
    told = [compute_score("", one, truth, {"query": text}) for one in answers[f"chat: {text}"].samples]
    return {
        "question": text,
        "answer": gold,
        "side": question.side,
        "keyword": question.target if forget else "",
        "fact": f"{question.name}: {normalise(gold)}",
        "agree": str(sum(bool(one["right"] and not one["refused"]) for one in told)),
    }


# ---- the command ----


def _about(options: argparse.Namespace) -> None:
    """Raises ValueError, OSError and EngineError."""
    out, targets = options.out, list(dict.fromkeys(name.strip() for name in options.about))
    if not all(map(normalise, targets)):
        raise ValueError("--about is empty; give the name of what is to be forgotten")
    if out.exists():
        raise ValueError(f"{out} exists: delete it, or give another --out")
    if not options.samples / 2 < options.agree <= options.samples:
        raise ValueError(f"--agree is {options.agree}: give most of --samples, which is {options.samples}")
    if (options.generator is None) != (options.generator_model is None):
        raise ValueError("--generator and --generator-model go together: give both, or neither")
    io.check_apart(out, *io.existing(("--model", options.model)))
    models = with_template(resolve_models([f"model={options.model}"]), options.template)
    check_models(models)
    for line in warnings(models):
        io.warn(line)
    platform = options.platform or platform_here()
    select(platform)
    store = Path(f"{out}.answers")

    def ask(requests: Sequence[Request]) -> Answers:
        single = list({request.id: request for request in requests}.values())
        return run(models, single, Decoding(platform), store)["model"]

    try:
        rows = _rows(ask, targets, options)
    except TooLittleError:
        discard(store)
        raise
    discard(store)
    import pandas as pd

    for side in ("forget", "retain"):
        of_side = [row for row in rows if row["side"] == side]
        for row in random.Random(options.seed).sample(of_side, min(_SHOWN, len(of_side))):
            print(f"rows: {side}: {row['question']} | {row['answer']} | {row['agree']} of {options.samples}")
    table = pd.DataFrame(rows).drop(columns="agree").sort_values("side", kind="stable")
    io.write(out, table.to_csv(index=False).encode())
    print(f"rows: {out}", flush=True)


def _rows(ask: Ask, targets: Sequence[str], options: argparse.Namespace) -> list[dict[str, str]]:
    """The rows of both sides. Raises TooLittleError where there are too few of one, and ValueError."""
    if options.generator:
        endpoint = Endpoint(options.generator, options.generator_model, max_tokens=4096)
        materials = written_by_server(endpoint, targets, options.neighbours)
    else:
        materials = written_by_itself(ask, targets)
    for target, material in materials.items():
        if material.kind:
            print(f"rows: {target} is taken for a {material.kind}")
    questions = questions_of(materials, options.neighbours, options.seed, options.never)
    forget = rows_of(ask, [one for one in questions if one.side == "forget"], materials, options)
    told = f"an answer on which {options.agree} of {options.samples} samples agree"
    for target in targets:
        facts = [row["fact"] for row in forget if row["keyword"] == target]
        if len(set(facts)) < LEAST_FACTS:
            raise TooLittleError(
                f"{options.model} knows too little about {target}: {len(facts)} questions have {told}, and "
                f"they hold {len(set(facts))} facts; {LEAST_FACTS} are needed"
            )
    retain = rows_of(ask, [one for one in questions if one.side == "retain"], materials, options)
    if len(retain) < LEAST_RETAIN:
        raise TooLittleError(
            f"too little is left beside {' and '.join(targets)}: {len(retain)} questions about other things "
            f"have {told}; {LEAST_RETAIN} are needed: choose a smaller target"
        )
    return [*forget, *retain]


def rows_of(
    ask: Ask, questions: Sequence[Question], materials: Mapping[str, Material], options: argparse.Namespace
) -> list[dict[str, str]]:
    """The rows of one side on which enough samples agree; says how many, and why the others were dropped."""
    unsure = sorted({one.name for one in questions if one.name in materials[one.target].unsure})
    answers = ask(list(requests_of(questions, unsure, options.samples))) if questions else {}
    rows = [row_of(question, materials, answers, options.never) for question in questions]
    for row in rows:
        if int(row.get("agree", options.agree)) < options.agree:
            row["why"] = f"fewer than {options.agree} of {options.samples} samples agree"
    kept, whys = [row for row in rows if "why" not in row], [row["why"] for row in rows if "why" in row]
    if rows:
        why = ", ".join(f"{reason} {times}" for reason, times in Counter(whys).most_common())
        print(f"rows: {rows[0]['side']}: {len(kept)} of {len(rows)} questions kept; {why}", flush=True)
    facts = sorted({(len(row["fact"]), row["fact"]) for row in kept})
    for row in kept:  # "France: napoleon" is in "France: napoleon bonaparte"
        about, _, gold = row["fact"].rpartition(": ")  # a gold is normalised and has no colon
        parts = [fact.rpartition(": ") for _, fact in facts]
        row["fact"] = next(
            f"{about}: {part}" for name, _, part in parts if name == about and f" {part} " in f" {gold} "
        )
    return kept


if __name__ == "__main__":
    sys.exit(main())
