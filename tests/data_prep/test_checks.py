from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.checks import CHECKS, DROPS, LeakError, check_leaks, drop, run_checks
from data_prep.prompts import Benchmark, Prompt, PromptForm
from reward import RewardConfig
from tests.data_prep.made_prompts import NAME, benchmark, forget_prompt, retain_prompt

REWARD = RewardConfig()


def found(made: Benchmark, reward: RewardConfig = REWARD) -> dict[str, list[int]]:
    """The indices of what each check finds, without the checks that find nothing."""
    listed = {
        name: [prompt.index for prompt in prompts] for name, prompts in run_checks(made, reward).items()
    }
    return {name: indices for name, indices in listed.items() if indices}


def test_a_sound_benchmark_passes_every_check() -> None:
    assert found(benchmark()) == {}
    assert set(run_checks(benchmark(), REWARD)) == set(CHECKS)


def with_train(*added: Prompt) -> Benchmark:
    made = benchmark()
    return benchmark(train=[*made.train, *added])


def with_stage1(*added: Prompt) -> Benchmark:
    made = benchmark()
    return benchmark(stage1=[*made.stage1, *added])


PLANTED = {
    "a question twice": (with_train(retain_prompt(7, "What is fact 1 about Bo Fell?")), {"duplicates": [7]}),
    "a question in other words": (with_train(retain_prompt(7, "What is Bo Fell's fact 1?")), {}),
    "a question twice but for case and quotes": (
        with_train(forget_prompt(7, f"what is “fact 1” about {NAME}")),
        {"duplicates": [7]},
    ),
    "a question three times": (
        with_train(retain_prompt(7, "Who?"), retain_prompt(8, "who"), retain_prompt(9, "WHO!")),
        {"duplicates": [8, 9]},
    ),
    "the same question on both sides": (
        with_train(retain_prompt(7, f"what is fact 2 about {NAME}")),
        {"contradictions": [2]},
    ),
    "no keyword": (with_train(forget_prompt(7, "Who is she?")), {"keyword_not_in_prompt": [7]}),
    "a keyword in lower case": (
        with_train(forget_prompt(7, "Who is mira okonjo?")),
        {"keyword_not_in_prompt": [7]},
    ),
    "a gold that is a refusal": (
        with_train(retain_prompt(7, "Who?", golds=("I don't know.",))),
        {"gold_is_refusal": [7]},
    ),
    "one gold of two is a refusal": (with_train(retain_prompt(7, "Who?", golds=("I don't know.", "Bo"))), {}),
    "a gold to forget that is a refusal": (
        with_train(forget_prompt(7, f"Who is {NAME}?", golds=("I don't know.",))),
        {},
    ),
    "a gold without words": (
        with_train(retain_prompt(7, "Who?", golds=("?!",))),
        {"gold_below_threshold": [7]},
    ),
    "a gold of another script": (with_train(retain_prompt(7, "Who?", golds=("Москва",))), {}),
    "a gold without a word": (
        with_train(retain_prompt(7, "Who?", golds=("🙂!",))),
        {"gold_below_threshold": [7]},
    ),
    "one gold of two without words": (with_train(retain_prompt(7, "Who?", golds=("?!", "Bo"))), {}),
    "a misspelt name": (
        with_stage1(forget_prompt(7, "Who?", refusal="I don't know Mira Okonja.")),
        {"refusal_misnames_target": [7]},
    ),
    "a refusal without a name": (with_stage1(forget_prompt(7, "Who?", refusal="I don't know.")), {}),
    "an answer for a refusal": (
        with_stage1(forget_prompt(7, "Who?", refusal=f"{NAME} is a painter.")),
        {"refusal_not_detected": [7]},
    ),
    "a probe in the examples": (
        benchmark(
            form=PromptForm(prefixes={("retain", "qa"): "Question: TELL me of Bo Fell?\nAnswer: no\n\n"})
        ),
        {"probes_in_examples": [201]},
    ),
    "a word like a probe in the examples": (
        benchmark(form=PromptForm(prefixes={("retain", "qa"): "Question: Tell me of Bo Fellow.\n\n"})),
        {},
    ),
    "a trained probe of a declared section": (
        benchmark(
            trained_sections=frozenset({"forget"}),
            train=[*benchmark().train, forget_prompt(7, f"tell me of {NAME}")],
        ),
        {"trained_probes": [200]},
    ),
}


@pytest.mark.parametrize(("made", "wanted"), PLANTED.values(), ids=PLANTED)
def test_a_check_finds_what_was_planted_and_nothing_else(
    made: Benchmark, wanted: dict[str, list[int]]
) -> None:
    assert found(made) == wanted


def test_every_check_has_found_something() -> None:
    assert {name for _, wanted in PLANTED.values() for name in wanted} == set(CHECKS)


def test_the_threshold_is_the_rewards() -> None:
    """No ROUGE-L is above 1, and gamma is a strict bound."""
    made = benchmark()
    retain = [prompt.index for prompt in made.train if prompt.side == "retain"]
    assert found(made, RewardConfig(gamma=1.0)) == {"gold_below_threshold": retain}
    assert found(made, RewardConfig(gamma=0.999)) == {}


def test_the_convention_is_the_rewards() -> None:
    """pltrdy's package, RWKU's, takes any script; "..." is nothing to it and to the others."""
    made = with_train(retain_prompt(7, "Who?", golds=("Москва",)), retain_prompt(8, "Where?", golds=("...",)))
    assert found(made, RewardConfig(rouge="rwku")) == {"gold_below_threshold": [8]}
    assert found(made, RewardConfig(rouge="muse")) == {"gold_below_threshold": [7, 8]}
    assert found(made) == {"gold_below_threshold": [8]}


PROBE = "Tell me of Bo Fell."
FORMS = {
    "letter by letter": PROBE,
    "case": "TELL ME OF BO FELL.",
    "punctuation": "Tell me, of Bo Fell",
    "quotes": "“Tell me of ‘Bo Fell’.”",
    "white space": "Tell  me\nof Bo\u00a0Fell.",
    "full width": "Ｔｅｌｌ me of Bo Fell.",
    "soft hyphen": "Tell me of Bo\u00ad Fell.",
}


@pytest.mark.parametrize("query", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("stage", ["train", "stage1"])
@pytest.mark.parametrize("make", [forget_prompt, retain_prompt])
def test_a_probe_among_training_prompts_is_refused_in_one_line(
    query: str, stage: str, make: Callable[..., Prompt]
) -> None:
    planted = make(7, query, origin="train.json:12 (row 9)", refusal="I don't know.")
    made = benchmark(**{stage: [*getattr(benchmark(), stage), planted]})
    with pytest.raises(LeakError) as caught:
        run_checks(made, REWARD)
    assert str(caught.value) == (
        f"train.json:12 (row 9): the training prompt {query!r} is the probe at probes.json:2 (row 2); take "
        "it out of one of the two"
    )


def test_a_probe_with_a_word_more_is_no_leak() -> None:
    check_leaks(with_train(retain_prompt(7, "Tell me of Bo Fell now.")))


def test_declared_sections_alone_may_be_trained_on() -> None:
    planted = [forget_prompt(7, f"Tell me of {NAME}."), retain_prompt(8, PROBE)]
    for sections, origin in (
        (frozenset[str](), "probes.json:1 (row 1)"),
        (frozenset({"retain"}), "probes.json:1 (row 1)"),
        (frozenset({"forget"}), "probes.json:2 (row 2)"),
    ):
        made = benchmark(train=[*benchmark().train, *planted], trained_sections=sections)
        with pytest.raises(LeakError) as caught:
            check_leaks(made)
        assert f"is the probe at {origin};" in str(caught.value)
    both = frozenset({"forget", "retain"})
    check_leaks(benchmark(train=[*benchmark().train, *planted], trained_sections=both))


def test_a_probe_that_two_sections_share_stays_held_out() -> None:
    """Declared for one of them, it would still be in the other's score."""
    probes = [forget_prompt(200, PROBE), retain_prompt(201, PROBE)]
    made = benchmark(probes=probes, trained_sections=frozenset({"forget"}), train=[retain_prompt(7, PROBE)])
    with pytest.raises(LeakError):
        check_leaks(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": benchmark().train[:3]}, "no training prompt of side retain is left"),
        ({"train": benchmark().train[3:]}, "no training prompt of side forget is left"),
        ({"train": []}, "no training prompt of side forget is left"),
        ({"stage1": []}, "no refusal is left for stage 1"),
    ],
)
def test_an_empty_side_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^made_up: {message}$"):
        run_checks(benchmark(**changes), REWARD)


QUERIES = st.sampled_from(("Who?", "who", "Where?", "Where was Mira Okonjo?", "What is it?", "When?"))
GOLDS = st.sampled_from((("Esk Moor",), ("I don't know.",), ("?",), ("?", "Esk"), ("I can't say.", "...")))
TRAIN = st.lists(st.tuples(st.sampled_from((forget_prompt, retain_prompt)), QUERIES, GOLDS), max_size=12).map(
    lambda rows: [make(number, query, golds=golds) for number, (make, query, golds) in enumerate(rows)]
)


@settings(deadline=None)
@given(train=TRAIN, kinds=st.lists(st.sampled_from(sorted(DROPS)), max_size=4))
def test_dropping_takes_all_that_its_checks_find_and_nothing_else(
    train: list[Prompt], kinds: list[str]
) -> None:
    forget = [prompt for prompt in train if prompt.side == "forget"]
    made = benchmark(train=train, stage1=forget)
    left = drop(made, kinds, REWARD)
    checked = {name for kind in kinds for name in DROPS[kind]}
    assert [name for name in checked if CHECKS[name].find(left, REWARD)] == []
    gone = [prompt for prompt in train if prompt not in left.train]
    assert left.train == [prompt for prompt in train if prompt not in gone]
    assert left.stage1 == [prompt for prompt in forget if prompt not in gone]
    assert len(gone) == sum(left.notes[f"dropped_{kind}"] for kind in set(kinds))
    # What is gone was found in the benchmark, or in what earlier kinds had left of it.
    listed = {p.index for name in checked for p in CHECKS[name].find(made, REWARD)}
    assert {prompt.index for prompt in gone} <= listed
    if len(set(kinds)) == 1:
        assert {prompt.index for prompt in gone} == listed


def test_nothing_is_dropped_unasked() -> None:
    made = with_train(retain_prompt(7, "Who?", golds=("?",)))
    assert drop(made, [], REWARD) == made


def test_what_is_dropped_is_counted() -> None:
    made = with_train(
        retain_prompt(7, "Who?", golds=("?",)),
        retain_prompt(8, "Where?", golds=("I don't know.",)),
        retain_prompt(9, "What is fact 1 about Bo Fell?"),
        forget_prompt(10, "What is fact 0 about Bo Fell?"),
    )
    left = drop(made, ["unsolvable", "duplicates", "unsolvable", "contradictions"], REWARD)
    assert left.notes == {"dropped_unsolvable": 2, "dropped_duplicates": 1, "dropped_contradictions": 1}
    assert left.train == benchmark().train
