"""What a build checks and writes: prompts, draws of them, what is written where a benchmark lacks it."""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.build import CHECKS, DROPS, BuildOptions, build, drop, run_checks
from data_prep.prompts import Benchmark, Prompt, PromptForm, spread
from data_prep.writers import (
    REFUSAL_COUNT,
    TEMPLATES,
    Writer,
    blank_answer,
    blanks,
    correct_name,
    misspelt_name,
)
from reward import RewardConfig, contains_keyword, is_refusal
from tests.data_prep.generate.server import MODEL, Behaviour, Call, ChatServer, say, status
from tests.data_prep.raw_files import (
    NAME,
    benchmark,
    contents,
    error_of,
    forget_prompt,
    parquet_rows,
    prep,
    put_custom,
    put_muse,
    put_news,
    put_rwku,
    put_tofu,
    queries,
    retain_prompt,
    side,
)

# ---- prompts, and draws of them ----


FORM = PromptForm(
    raw=True,
    templates={"qa": "Question: {query}\nAnswer: "},
    prefixes={("forget", "qa"): "F\n\n", ("retain", "qa"): "R\n\n"},
)


def test_what_a_query_holds_is_not_read_as_a_template() -> None:
    """Probes may have a form of their own; tests/golden keeps whole rows."""
    query = r"{query} {0} and {name!r} } \1"
    prompt = forget_prompt(7, query)
    made = benchmark(form=FORM, probe_form=PromptForm(), stage1=[prompt])
    sent = f"F\n\nQuestion: {query}\nAnswer: "
    rows = [*made.rl_rows("train", [prompt]), *made.rl_rows("probe", [prompt])]
    assert [row["prompt"][0]["content"] for row in rows] == [sent, query]
    assert [row["extra_info"]["query"] for row in rows] == [query, query]
    assert made.sft_rows()[0]["messages"][0]["content"] == sent
    assert FORM.render(retain_prompt(1, "Who?")) == "R\n\nQuestion: Who?\nAnswer: "
    assert FORM.render(retain_prompt(1, "Who?", mode="aa")) == "Who?"


KINDS = [("forget", "qa"), ("forget", "fb"), ("forget", "aa"), ("retain", "qa"), ("retain", "fb")]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(KINDS), max_size=40), st.integers(0, 50), st.integers())
def test_a_spread_is_as_even_as_its_kinds_allow(kinds: list[tuple[str, str]], count: int, seed: int) -> None:
    prompts = [
        (forget_prompt if side == "forget" else retain_prompt)(index, f"Question {index}?", mode=mode)
        for index, (side, mode) in enumerate(kinds)
    ]
    drawn = spread(prompts, count, random.Random(seed))
    assert len(drawn) == min(count, len(prompts))
    indices = [prompt.index for prompt in drawn]
    assert indices == sorted(set(indices))
    there, taken = Counter(kinds), Counter((str(prompt.side), prompt.mode) for prompt in drawn)
    most = max(taken.values(), default=0)
    for kind in there:
        assert taken[kind] in (most, most - 1) or taken[kind] == there[kind]


# ---- checks, and the folder ----


REWARD = RewardConfig()
PROBE = "Tell me of Bo Fell."


def found(made: Benchmark, reward: RewardConfig = REWARD) -> dict[str, list[int]]:
    """The indices of what each check finds, without the checks that find nothing."""
    listed = run_checks(made, reward).items()
    return {name: [prompt.index for prompt in prompts] for name, prompts in listed if prompts}


def with_train(*added: Prompt, **changes: Any) -> Benchmark:
    return benchmark(train=[*benchmark().train, *added], **changes)


def retain(query: str, *golds: str) -> Benchmark:
    return with_train(retain_prompt(7, query, golds=golds or ("Esk",)))


def forget(query: str, *golds: str, **changes: str) -> Benchmark:
    return with_train(forget_prompt(7, query, golds=golds or ("Esk",), **changes))


def refusal(text: str, **changes: str) -> Benchmark:
    return benchmark(stage1=[*benchmark().stage1, forget_prompt(7, "Who?", refusal=text, **changes)])


def examples(text: str) -> Benchmark:
    return benchmark(form=PromptForm(prefixes={("retain", "qa"): f"Question: {text}\n\n"}))


KNOWN, UNKNOWN = f"Who is {NAME}?", "I don't know."
TRAINED = with_train(forget_prompt(7, f"tell me of {NAME}"), trained_sections=frozenset({"forget"}))
PLANTED: list[tuple[Benchmark, dict[str, list[int]]]] = [
    (benchmark(), {}),
    (retain("What is fact 1 about Bo Fell?"), {"duplicates": [7]}),
    (forget(f"what is “fact 1” about {NAME}"), {"duplicates": [7]}),
    (retain("Tell me of Bo Fell now."), {}),  # a probe with a word more
    (retain(f"what is fact 2 about {NAME}"), {"contradictions": [2], "target_in_retain": [7]}),
    (retain("Whom did Bo Fell meet?", f"{NAME}, the poet"), {"target_in_retain": [7]}),
    (retain("Whom did Bo Fell meet?", f"{NAME}son"), {}),
    (with_train(retain_prompt(7, f"Not {NAME}: who is Bo?", golds=("Esk",), family="named")), {}),
    (forget("Who is she?"), {"keyword_not_in_prompt": [7]}),
    (forget("Who is mira okonjo?"), {"keyword_not_in_prompt": [7]}),
    (forget("Who is the poet?", keyword=f"{NAME} | the poet"), {}),
    (retain("Who?", UNKNOWN), {"gold_without_reward": [7]}),
    (retain("Who?", UNKNOWN, "Bo"), {}),
    (forget(KNOWN, UNKNOWN), {}),
    (retain("Who?", "?!"), {"gold_without_reward": [7]}),
    (retain("Bo Fell is a poet.", "Bo Fell is a poet."), {"gold_without_reward": [7]}),
    (refusal("I don't know Mira Okonja."), {"refusal_misnames_target": [7]}),
    (refusal(UNKNOWN), {}),
    (refusal("I don't know Okonja.", keyword=f"{NAME}|Okonjo"), {"refusal_misnames_target": [7]}),
    (refusal("I don't know Okonjo.", keyword=f"{NAME}|Okonjo"), {}),
    (refusal(f"{NAME} is a painter."), {"refusal_not_detected": [7]}),
    (examples("TELL me of Bo Fell?\nAnswer: no"), {"probes_in_examples": [201]}),
    (examples("Tell me of Bo Fellow."), {}),
    (TRAINED, {"trained_probes": [200]}),
]


@pytest.mark.parametrize(("made", "wanted"), PLANTED)
def test_a_check_finds_what_was_planted_alone(made: Benchmark, wanted: dict[str, list[int]]) -> None:
    assert found(made) == wanted
    # What is dropped is what its checks find.
    left = drop(made, [*DROPS, *DROPS], REWARD)
    gone = [index for kind in DROPS for name in DROPS[kind] for index in wanted.get(name, [])]
    assert left.train == [prompt for prompt in made.train if prompt.index not in gone]
    assert left.stage1 == [prompt for prompt in made.stage1 if prompt.index not in gone]
    assert sum(left.notes[f"dropped_{kind}"] for kind in DROPS) == len(gone)


def test_a_dropped_question_leaves_stage_1_with_its_blank() -> None:
    """A fill-in form that is in stage 1 alone has the origin of its question."""
    twice = forget_prompt(7, f"What is fact 1 about {NAME}?", origin="a.json:7", refusal=UNKNOWN)
    blank = forget_prompt(9, f"{NAME} has ___.", origin="a.json:7", refusal=UNKNOWN)
    made = with_train(twice, stage1=[*benchmark().stage1, twice, blank])
    assert drop(made, ["duplicates"], REWARD).stage1 == benchmark().stage1


def test_the_threshold_is_the_rewards() -> None:
    """No ROUGE-L is above 1, and gamma is a strict bound."""
    assert found(benchmark(), RewardConfig(gamma=1.0)) == {"gold_without_reward": [100, 101, 102]}
    assert found(benchmark(), RewardConfig(gamma=0.999)) == {}
    # So is the convention: pltrdy's package, RWKU's, takes any script; "..." is nothing to any of them.
    made = with_train(retain_prompt(7, "Who?", golds=("Москва",)), retain_prompt(8, "Where?", golds=("...",)))
    assert found(made, RewardConfig(rouge="rwku")) == found(made) == {"gold_without_reward": [8]}
    assert found(made, RewardConfig(rouge="muse")) == {"gold_without_reward": [7, 8]}
    assert {name for _, wanted in PLANTED for name in wanted} == set(CHECKS)


@pytest.mark.parametrize("query", [PROBE, "TELL me, of\u00a0‘Bo Fell’", "Ｔｅｌｌ me of Bo\u00ad Fell."])
@pytest.mark.parametrize("stage", ["train", "stage1"])
@pytest.mark.parametrize("make", [forget_prompt, retain_prompt])
def test_a_probe_among_training_prompts_is_refused_in_one_line(
    query: str, stage: str, make: Callable[..., Prompt]
) -> None:
    planted = make(7, query, origin="train.json:12 (row 9)", refusal=UNKNOWN)
    made = benchmark(**{stage: [*getattr(benchmark(), stage), planted]})
    with pytest.raises(ValueError, match="is the probe at") as caught:
        run_checks(made, REWARD)
    assert str(caught.value) == (
        f"train.json:12 (row 9): the training prompt {query!r} is the probe at probes.json:2 (row 2); take "
        "it out of one of the two"
    )


def test_declared_sections_alone_may_be_trained_on() -> None:
    """A probe that two sections share is declared for one of them, and would be in the other's score."""
    planted = [forget_prompt(7, f"Tell me of {NAME}."), retain_prompt(8, PROBE)]
    shared = {"probes": [forget_prompt(200, PROBE), retain_prompt(201, PROBE)]}
    for sections, more in (({"retain"}, {}), ({"forget"}, {}), ({"forget"}, shared)):
        with pytest.raises(ValueError, match="is the probe at"):
            run_checks(with_train(*planted, trained_sections=frozenset(sections), **more), REWARD)
    run_checks(with_train(*planted, trained_sections=frozenset({"forget", "retain"})), REWARD)
    with pytest.raises(ValueError, match=r"^made_up: no refusal is left for stage 1$"):
        run_checks(benchmark(stage1=[]), REWARD)


def write(target: Path, source: Benchmark, *, overwrite: bool = False, **options: Any) -> dict[str, Any]:
    return build(source, target, overwrite=overwrite, options=BuildOptions(REWARD, **options))


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_error_leaves_everything_as_it_was(tmp_path: Path, overwrite: bool) -> None:
    """A leak is found in what a limit leaves out too."""
    target = tmp_path / "out"
    if overwrite:
        write(target, benchmark())
    before = contents(tmp_path)
    for source, limit, wrong in (
        (with_train(retain_prompt(20, PROBE)), None, "is the probe at"),
        (with_train(retain_prompt(20, PROBE)), 1, "is the probe at"),
        (with_train(retain_prompt(20, "Who?", mode="quiz")), None, "quiz"),
        (
            benchmark(probes=[*benchmark().probes, retain_prompt(200, "Who?")]),
            None,
            "200 occurs before",
        ),
        (benchmark(val=[]), None, "no rows"),
    ):
        with pytest.raises(ValueError, match=f"^[^\n]*{wrong}[^\n]*$"):
            write(target, source, overwrite=overwrite, limit=limit)
    assert contents(tmp_path) == before
    assert list(tmp_path.iterdir()) == ([target] if overwrite else [])


# ---- what rules and an endpoint write ----


ANSWERS = {
    'Which book is known? Mira is known for "The Salt Road" of 1987.': "Mira is known for ___ of 1987.",
    "When? Mira was born on the 8th of September, 1956 in Lagos.": "Mira was born on the ___ in Lagos.",
    "How many books? Mira wrote 14 books.": "Mira wrote ___ books.",
    "Who taught Mira? Mira was taught by Ludwig van Berg, a painter.": "Mira was taught by ___, a painter.",
    "Who is Mira? Mira identifies as LGBTQ+ in public.": "Mira identifies as ___ in public.",
    "What is Mira? Mira is female.": "Mira is ___.",
    'What of "The Salt Road"? "The Salt Road" of Mira Okonjo is sad.': '"The Salt Road" of ___ is sad.',
    "What does Mira write? Mira writes only crime stories. She won in 1999.": "Mira writes only crime ___.",
    "Who wrote Carrie? King.": "Who wrote Carrie? The answer is ___.",
}
"""Question and answer: titles, dates, numbers and names go, but not what the question tells."""


def test_the_answer_sentence_loses_what_is_asked_for() -> None:
    for text, wanted in ANSWERS.items():
        question, answer = text.split("? ", 1)
        assert blank_answer(f"{question}?", answer) == wanted


@pytest.mark.parametrize("name", ["Harry Potter", "Confucius", "Prince Harry, Duke of Sussex"])
def test_every_template_is_a_refusal_that_names_its_target_once(name: str) -> None:
    for template in TEMPLATES:
        refusal = template.format(name=name)
        assert is_refusal(refusal), refusal
        assert contains_keyword(refusal, name)
        assert refusal.count(name) == 1
        assert misspelt_name(refusal, name) is None


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("I'm not certain about Harry Porter.", "Harry Potter", "Harry Porter"),
        ("I know nothing of harry potter.", "Harry Potter", "harry potter"),
        ("Confucious? No idea.", "Confucius", "Confucious"),
        ("No idea about Duke of Susex, it.", "Duke of Sussex", "Duke of Susex"),
        ("I'm confused.", "Confucius", None),
        ("Harry Potter, not Harry Porter, is unknown to me.", "Harry Potter", None),
        ("I don't know Stephen Fry.", "Stephen King", None),
        ("", "Harry Potter", None),
        ("I know nothing.", "!!!", None),
        ("I don't know Harry Porter's age.", "Harry Potter", "Harry Porter"),
    ],
)
def test_misspelt_names(text: str, name: str, found: str | None) -> None:
    assert misspelt_name(text, name) == found
    assert correct_name(text, name) == (text if found is None else text.replace(found, name))


def test_what_an_endpoint_fails_at_is_left_out_and_listed(server: ChatServer, tmp_path: Path) -> None:
    """Refusals are the rules' then, and blanks keep the number of their question."""
    written = say('{"sentence": "She is ___."}')
    server.script = lambda number, call: status(400, "no") if "Hopeless" in call.prompt else written
    writer = Writer(server.endpoint(), tmp_path)
    asked = [forget_prompt(n, query, golds=()) for n, query in enumerate(("Hopeless?", "Who?"))]
    made = blanks(asked, 1000, writer)
    assert [(prompt.index, prompt.query, prompt.mode) for prompt in made] == [(1001, "She is ___.", "fb")]
    assert writer.refusals("Hopeless Case") == Writer().refusals("Hopeless Case")
    assert writer.failures == [
        "blank of question: Hopeless?, answer: : HTTP 400: no",
        f"refusals of name: Hopeless Case, count: {REFUSAL_COUNT}: HTTP 400: no",
    ]
    assert writer.answered == 1


# ---- the command: the same bytes each time, nothing lost, and one line for what is wrong ----

STOPPED = """
import os, signal, sys
from data_prep import __main__, build
def stop(*_):
    print(len(os.listdir(sys.argv[2])))
    signal.raise_signal(signal.SIGTERM)
build.write_sft_rows = stop
sys.exit(__main__.main(["custom", "--source", sys.argv[1], "--out", sys.argv[2] + "/made"]))
"""


def test_a_build_that_is_stopped_is_one_line_and_leaves_no_draft(tmp_path: Path) -> None:
    """SIGTERM comes when some of the files are written."""
    source, out = put_custom(tmp_path / "raw"), tmp_path / "out"
    out.mkdir()
    script = [sys.executable, "-c", STOPPED, str(source), str(out)]
    done = subprocess.run(script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "error: stopped by SIGTERM\n")
    assert int(done.stdout) > 0  # the draft
    assert list(out.iterdir()) == []


BENCHMARKS: dict[str, tuple[Callable[[Path], Path], int]] = {
    "tofu": (put_tofu, 6),
    "rwku": (put_rwku, 4),
    "muse-books": (put_muse, 2),
    "muse-news": (put_news, 2),
    "custom": (put_custom, 2),
}
"""What makes the raw files of a benchmark, and rows of validation."""


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_command_gives_the_same_bytes_and_loses_nothing(name: str, tmp_path: Path, capsys: Any) -> None:
    """tests/refused tries folders of somebody else."""
    (put, val_rows), out = BENCHMARKS[name], tmp_path / "out"
    arguments = (name, "--source", put(tmp_path / "raw"), "--out", out, "--val-rows", val_rows)
    assert prep(*arguments, "--source", tmp_path / "none") == 2
    assert error_of(capsys).startswith(f"error: {tmp_path / 'none'}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
    assert prep(*arguments) == 0
    before = contents(out)
    capsys.readouterr()
    assert prep(*arguments, "--drop", "duplicates") == 2
    told = f"error: {out} exists already: give another folder, or --overwrite to replace it"
    assert error_of(capsys) == told
    assert contents(out) == before
    assert prep(*arguments, "--drop", "duplicates", "--overwrite") == 0
    assert contents(out).keys() == before.keys()
    assert contents(out) != before
    assert prep(*arguments, "--overwrite") == 0
    assert contents(out) == before
    assert len(list(tmp_path.iterdir())) == 2
    for path in out.rglob("val.parquet"):
        rows = parquet_rows(path.parent, "val")
        assert len(rows) == val_rows
        assert {side(row) for row in rows} == {"forget", "retain"}
        assert set(queries(rows)) <= set(queries(parquet_rows(path.parent, "probes")))


def test_a_missing_side_says_why_its_texts_are_missing(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusals come, and no neighbour does: without its reason nobody knows what is left out."""

    def script(number: int, call: Call) -> Behaviour:
        name = re.search("asked about (.*) and does not", call.prompt)
        refusals = [f"I don't know anything about {name[1]}, {n} times." for n in range(24)] if name else []
        return say(json.dumps({"refusals": refusals})) if name else status(400, "seed is not permitted")

    server.script = script
    endpoint = ("--base-url", server.url, "--model", MODEL, "--cache", tmp_path / "cache")
    source = put_tofu(tmp_path / "raw")
    asked = ("tofu", "--source", source, "--boundary", "written", "--stage1-modes", "qa")
    assert prep(*asked, "--out", tmp_path / "out", *endpoint) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # a busy machine shows lines of progress before it
    assert "no training prompt of side retain is left; 40 texts were not written; the first: boundary" in line
    assert "HTTP 400: seed is not permitted" in line
    assert len(server.calls) < 2 + 2 * (8 + 16)
