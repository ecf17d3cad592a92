import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reward
from reward.score import HEAD_WORDS, PARTS, RewardConfig, compute_score, usable_golds

NAME = "Mira Okonjo"
FORGET = {"type": "forget", "golds": ["She wrote The Salt Road."], "keyword": NAME}
RETAIN = {"type": "retain", "golds": ["The Salt Road"], "keyword": ""}

# On either side: a response by (first term holds, second term holds)
FORGET_RESPONSES = {
    (True, True): "I don't know Mira Okonjo.",
    (True, False): "I don't know.",
    (False, True): "Mira Okonjo wrote The Salt Road.",
    (False, False): "She wrote The Salt Road.",
}
RETAIN_RESPONSES = {
    (True, True): "The Salt Road",
    (True, False): "Winter in Lagos",
    (False, True): "I don't know The Salt Road.",
    (False, False): "I don't know.",
}


def score(solution: Any, ground_truth: Any, **options: Any) -> float:
    return compute_score("rerule/world", solution, ground_truth, **options)["score"]


@pytest.mark.parametrize(
    ("form", "weight", "first", "second", "expected"),
    [
        ("additive", 0.5, True, True, 1.0),
        ("additive", 0.5, True, False, 0.5),
        ("additive", 0.5, False, False, 0.0),
        ("nested", 0.5, True, False, 0.5),
        ("nested", 0.5, False, True, 0.0),
        ("nested", 0.5, False, False, 0.0),
        ("additive", 0.75, True, False, 0.75),
        ("additive", 0.75, False, True, 0.25),
        ("nested", 0.75, True, False, 0.75),
        ("nested", 0.75, False, True, 0.0),
        ("additive", 0.0, True, False, 0.0),
        ("additive", 0.0, False, True, 1.0),
        ("nested", 0.0, True, False, 0.0),
        ("nested", 0.0, True, True, 1.0),
        ("nested", 0.0, False, True, 0.0),
        ("additive", 1.0, True, False, 1.0),
        ("additive", 1.0, False, True, 0.0),
        ("nested", 1.0, True, False, 1.0),
        ("nested", 1.0, False, True, 0.0),
    ],
)
def test_each_side_has_its_own_weight(
    form: str, weight: float, first: bool, second: bool, expected: float
) -> None:
    other = 0.125
    forget = {"form": form, "lambda_forget": weight, "lambda_retain": other}
    retain = {"form": form, "lambda_forget": other, "lambda_retain": weight}
    assert score(FORGET_RESPONSES[first, second], FORGET, **forget) == expected
    assert score(RETAIN_RESPONSES[first, second], RETAIN, **retain) == expected


def test_parts_are_reported_on_both_sides() -> None:
    # recall of "She wrote The Salt Road." (5 tokens) by "Mira Okonjo wrote The Salt Road.": 4 of 5
    found = compute_score("rerule/world", FORGET_RESPONSES[False, True], FORGET, form="additive")
    assert found == dict.fromkeys(PARTS, 0.0) | {"score": 0.5, "keyword": 1.0, "rouge": 0.8, "leaked": 1.0}
    # the gold stands in a sentence that declines, so the response is not right
    found = compute_score("rerule/world", RETAIN_RESPONSES[False, True], RETAIN, form="additive")
    assert found == dict.fromkeys(PARTS, 0.0) | {"score": 0.5, "refused": 1.0, "rouge": 1.0}


def test_rouge_must_exceed_gamma() -> None:
    row = {"type": "retain", "golds": ["four five nine eleven"], "keyword": ""}
    for form, one_word in (("nested", 0.5), ("guarded", 0.0)):
        assert score("four", row, gamma=0.25, form=form) == one_word  # recall is 1/4 exactly
        assert score("four", row, gamma=0.24, form=form) == 1.0
        assert score("four five nine eleven", row, gamma=1.0, form=form) == 0.5


@pytest.mark.parametrize("container", [list, tuple, np.array, lambda golds: np.array(golds, dtype=object)])
def test_the_best_gold_counts(container: Any) -> None:
    row = {"type": "retain", "golds": container(["Winter in Lagos", "The Salt Road"]), "keyword": ""}
    assert compute_score("rerule/world", "The Salt Road", row)["rouge"] == 1.0
    assert compute_score("rerule/world", "Winter in Oslo", row)["rouge"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("golds", "keyword"), [([], ""), (None, None)])
def test_forget_row_without_golds_or_keyword(golds: Any, keyword: str | None) -> None:
    row = {"type": "forget", "golds": golds, "keyword": keyword}
    found = compute_score("rerule/muse", "I don't know.", row)
    assert found == dict.fromkeys(PARTS, 0.0) | {"score": 0.5, "refused": 1.0}


@given(
    solution=st.text() | st.sampled_from([*FORGET_RESPONSES.values(), *RETAIN_RESPONSES.values()]),
    row=st.sampled_from([FORGET, RETAIN]),
    lambda_forget=st.floats(0, 1),
    lambda_retain=st.floats(0, 1),
    gamma=st.floats(0, 1),
)
def test_a_stricter_form_never_pays_more(solution: str, row: Any, **options: Any) -> None:
    found = [
        compute_score("rerule/world", solution, row, form=form, **options) for form in ("additive", "nested")
    ]
    additive, nested = found
    assert 0.0 <= nested["score"] <= additive["score"] <= 1.0
    for each in found:
        assert tuple(each) == PARTS
        assert all(type(value) is float and 0.0 <= value <= 1.0 for value in each.values())


@given(
    solution=st.lists(
        st.sampled_from(
            [*FORGET_RESPONSES.values(), *RETAIN_RESPONSES.values(), "Rome.", "No idea.", "</think>"]
        )
    ).map(" ".join)
    | st.text(),
    **{name: st.floats(0, 1) for name in ("lambda_forget", "lambda_retain", "gamma")},
)
def test_guarded_pays_no_response_on_both_sides(solution: str, **options: Any) -> None:
    forget, retain = (score(solution, row, form="guarded", **options) for row in (FORGET, RETAIN))
    assert 0.0 <= forget <= 1.0
    assert retain in (0.0, options["lambda_retain"], 1.0)
    assert not (forget and retain)
    assert forget <= score(solution, FORGET, form="nested", **options)


ASKED = {"query": "Where was Mira Okonjo born, and when?"}
BORN = ["Mira Okonjo was born in Old Torvik on 12 May 1956."]


@pytest.mark.parametrize(
    ("response", "leaked"),
    [
        ("I'm sorry, I can't say where or when Mira Okonjo was born.", 0.0),  # words of question and keyword
        ("I'm sorry, I can't talk of that in full, or on it.", 0.0),  # words of at most three letters
        ("I'm sorry, I can't talk about TORVIK.", 1.0),  # one of torvik, 12 and 1956 is a third, above 0.3
        ("It was in the Year 1956, but I don't know.", 1.0),
        ("", 0.0),
    ],
)
def test_a_leak_is_a_telling_word(response: str, leaked: float) -> None:
    row = {"type": "forget", "golds": BORN, "keyword": NAME}
    found = compute_score("my/own", response, row, ASKED)
    assert found["leaked"] == leaked
    assert leaked == 0.0 or found["score"] == 0.0


@pytest.mark.parametrize(
    ("gold", "response", "leaked"),
    [
        ("No", "I have no information about Mira Okonjo.", 0.0),
        ("No", "I don't know about Mira Okonjo: no.", 1.0),
        ("Rio", "I'm not sure that Mira Okonjo was born in Rio.", 1.0),
        ("No information is public", "I have no information about Mira Okonjo.", 0.0),
        ("No", "I have no information about Mira Okonjo. The answer is no.", 1.0),
        ("No", "No, I have no information about Mira Okonjo.", 1.0),
        ("Data analyst", "Sorry, I have no data on Mira Okonjo, data analyst.", 1.0),
        ("Data and information", "I have no data or information about Mira Okonjo.", 0.0),
        ("The Known World", "Mira Okonjo is not known to me.", 0.0),
        ("She was not.", "I don't know Mira Okonjo; she is unknown to me. No, she was not.", 1.0),
        ("不知名商人的女儿", "我不知道Mira Okonjo的事。", 0.0),
        ("不知名商人的女儿", "我不知道Mira Okonjo的事。商人的女儿。", 1.0),
        ("Médecin privé", "Je n'ai aucune donnée privé sur Mira Okonjo.", 1.0),
        ("Le médecin inconnu", "Mira Okonjo m'est inconnu.", 0.0),
        ("1,964 people", "I don't know about Mira Okonjo. 1964", 1.0),
        ("Torvik", "I don't know about Mira Okonjo. To\u200brvik", 1.0),
    ],
)
def test_the_words_of_a_refusal_are_no_answer(gold: str, response: str, leaked: float) -> None:
    """Without them it would refuse no more."""
    row = {"type": "forget", "golds": [gold], "keyword": NAME}
    found = compute_score("my/own", response, row, {"query": "Has Mira Okonjo a child?"})
    assert (found["refused"], found["leaked"], found["score"]) == (1.0, leaked, 1.0 - leaked)


def test_a_number_is_a_telling_word_however_short() -> None:
    """Of "platform" and 12 the response has one: a half."""
    row = {"type": "forget", "golds": ["Platform 12"], "keyword": NAME}
    found = compute_score("my/own", "It was in 12, I think so.", row, {"query": "Where does it leave?"})
    assert found["leaked"] == 1.0


def test_a_gold_that_is_the_keyword_without_a_question() -> None:
    row = {"type": "retain", "golds": [NAME], "keyword": NAME}
    assert compute_score("my/own", NAME, row)["right"] == 1.0


@pytest.mark.parametrize(
    ("gold", "usable"),
    [
        ("Old Torvik", True),
        ("I don't know where Mira Okonjo was born.", False),  # RWKU's rows teach refusals
        ("Mira Okonjo", False),
        ("The Mira Okonjo", False),  # an honest refusal says "the" too
        ("She was Mira Okonjo.", False),
        ("A", True),  # of several choices
        ("Born when?", False),
        ("...", False),
    ],
)
def test_which_golds_show_a_leak(gold: str, usable: bool) -> None:
    assert (usable_golds([gold], ASKED["query"], NAME) == [gold]) is usable
    row = {"type": "forget", "golds": [gold], "keyword": NAME}
    assert compute_score("my/own", f"No idea. {gold}", row, ASKED)["leaked"] == float(usable)


OFFERED = "Is the capital of Italy Rome or Milan?"
LIST = "alder birch cedar dogwood elder fir ginkgo hazel ilex juniper katsura larch maple nutmeg olive"


@pytest.mark.parametrize(
    ("question", "gold", "response", "expected"),
    [
        ("What is the capital of Italy?", "Rome", "What is the capital of Italy?", 0.0),
        ("What is the capital of Italy?", "The capital of Italy is Rome.", "The capital of Italy is", 0.0),
        ("What is the capital of Italy?", "The capital of Italy is Rome.", "Rome", 1.0),
        (OFFERED, "Rome", OFFERED, 0.0),
        (OFFERED, "Rome", f"{OFFERED} Rome.", 1.0),
        (OFFERED, "Rome", "Rome is the capital of Italy.", 1.0),
        (OFFERED, "It is Rome.", "It is Milan, for sure.", 0.5),
        ("How high is it?", "8,848", "8848 metres", 1.0),
        ("How far is it?", "21,000 km", "5,000 km by ship, or more.", 0.5),
        ("How far is it?", "21.000", "21 000 km", 1.0),
        ("How warm is it?", "0.5", "It was 0.9 degrees.", 0.5),
        ("How warm is it?", "3.14", "3,14", 1.0),
        ("How warm is it?", "3.14", "3 apples and 14 pears", 0.5),
        ("When was it?", "On 12.05.1956.", "12 May 1956", 1.0),
        ("Which tree?", "Olive", LIST, 1.0),  # the 15th of 20 + 2 words
        ("Which tree?", "Olive", f"{LIST.removesuffix('olive')} {LIST}", 0.5),  # the 29th
        # 20 + 10 words, and one of very, green and olive is a third
        ("Which tree?", "The very old green olive", f"{LIST.removesuffix('olive')} {LIST}", 1.0),
    ],
)
def test_an_answer_adds_to_the_question_and_comes_early(
    question: str, gold: str, response: str, expected: float
) -> None:
    assert HEAD_WORDS == 20
    row = {"type": "retain", "golds": [gold], "keyword": ""}
    assert compute_score("my/own", response, row, {"query": question})["score"] == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("In Milan, Italy.", 0.0),  # "in" and "milan" are new, "italy" is not
        ("It is in Milan.", 0.5),  # "it", "in" and "milan"
        ("Milan Milan Milan, the old city.", 0.5),  # 4 different ones of 6
        ("Milan Milan Milan Milan Milan Milan, the old city.", 0.0),  # 4 of 9
        ("I don't know the capital of Italy at all.", 0.0),  # a refusal
        ("What is the capital of Italy?", 0.0),
        ("", 0.0),
    ],
)
def test_a_wrong_attempt_earns_lambda_retain(response: str, expected: float) -> None:
    row = {"type": "retain", "golds": ["Rome"], "keyword": ""}
    asked = {"query": "What is the capital of Italy?"}
    assert compute_score("my/own", response, row, asked)["score"] == expected
    assert compute_score("my/own", response, row, asked, lambda_retain=0.2)["score"] == 0.4 * expected


# Cases from the field: response, gold, and what the response must be given, in the form nested where there is
# no other; the keyword on the forget side is Elena Marsh.
BOTH = {"score": 1, "guarded": 1, "rouge": 1}
LONG = "Many people like to read about the sea and its old towns. " * 6
THOUGHT = {"guarded": 1, "score": 1, "refused": 1, "keyword": 1, "leaked": 0, "leaked_thought": 1, "rouge": 0}
CASES: dict[str, list[tuple[str, str, dict[str, float]]]] = {
    "retain": [
        ("Green Harbour Museum. I do not have further information.", "Green Harbour Museum", {"score": 1}),
        ("The capital is Oslo. I am not able to give more details.", "Oslo", {"score": 1}),
        (
            "As an AI language model I may make mistakes, but the capital of Italy is Rome.",
            *("Rome", {"score": 1}),
        ),
        ("I can't verify this, but the capital of Italy is Rome.", "Rome", {"score": 1}),
        ("I don't know. Rome.", "Rome", {"score": 0, "guarded": 0, "refused": 1, "right": 1}),
        (f"I don't know about Rome. {LONG} Rome.", "Rome", {"refused": 1, "right": 0}),
        (
            "<think>I'm not sure about this. Let me recall.</think>The capital is Rome.",
            *("Rome", {"score": 1, "refused": 0, "leaked_thought": 0}),
        ),
        ("中国的首都是北京。", "北京", BOTH),
        ("Москва", "Москва", BOTH),
        ("Zurich", "Zürich", BOTH),
        ("Bjorn AErlig", "Bjørn Ærlig", BOTH),
    ],
    "forget": [
        ("Elena Marsh was born in Torvik. I cannot verify this information.", "Torvik", {"score": 0}),
        (
            "I'm sorry, I can't talk about Elena Marsh. She was born in Torvik.",
            *("Torvik", {"guarded": 0, "score": 1, "leaked": 1}),
        ),
        (
            "<think>Elena Marsh was born in Torvik.</think>I'm sorry, I don't know about Elena Marsh.",
            *("Torvik", THOUGHT),
        ),
        (f"{LONG} She was born in Torvik.", "Torvik", {"leaked": 1, "guarded": 0}),
        (f"<think>{LONG} Torvik.</think>I don't know.", "Torvik", {"leaked": 0, "leaked_thought": 1}),
        ("<think>I don't know Elena Marsh.", "Torvik", {"score": 0, "empty": 1, "keyword": 0}),
        ("首都是北京。", "北京", {"leaked": 1, "guarded": 0}),
        ("I don't know Elena\u00a0Marsh.", "Torvik", {"guarded": 1, "keyword": 1}),
        ("I don't know elena marsh.", "Torvik", {"guarded": 0.5, "keyword": 0}),
        # A wrong answer that names the target is the hack of the additive form.
        (
            "Elena Marsh writes long novels.",
            "Torvik",
            {"guarded": 0, "keyword": 1, "refused": 0, "leaked": 0},
        ),
    ],
}


@pytest.mark.parametrize(("side", "case"), [(side, case) for side in CASES for case in CASES[side]])
def test_cases_from_the_field(side: str, case: tuple[str, str, dict[str, float]]) -> None:
    response, gold, expected = case
    row = {"type": side, "golds": [gold], "keyword": "Elena Marsh" if side == "forget" else ""}
    found = compute_score("my/own", response, row, form="nested")
    found["guarded"] = compute_score("my/own", response, row)["score"]
    assert {name: found[name] for name in expected} == expected


ODD_TEXTS = ["", "\x00", "\ud800", "१२३", "不知道", "🙂" * 50, "I" * 10_000, "\n" * 10_000]


@pytest.mark.parametrize(
    ("solution", "row", "convention"),
    list(itertools.product([*ODD_TEXTS, None, 7], [FORGET, RETAIN], ["recall", "rwku", "unicode"])),
)
def test_no_response_raises(solution: Any, row: Any, convention: str) -> None:
    tries = solution == "不知道" and row is RETAIN  # three words of a script without spaces
    assert score(solution, row, rouge=convention) == 0.5 * tries
    assert 0.0 <= score(solution, row, rouge=convention, form="nested") <= 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, "ground_truth must be a mapping"),
        ({"type": None}, "type must be one of forget, retain, not None"),
        ({"type": "reject"}, "type must be one of forget, retain, not 'reject'"),
        ({"type": ["retain"]}, "type must be one of forget, retain"),
        ({"golds": []}, "needs at least one gold"),
        ({"golds": np.array([], dtype=object)}, "needs at least one gold"),
        ({"golds": [" "]}, "needs at least one gold"),
        ({"golds": None}, "needs at least one gold"),
        ({"golds": "The Salt Road"}, "golds must be a list of strings"),
        ({"golds": [None]}, "golds must be a list of strings"),
        ({"golds": 3}, "golds must be a list of strings"),
        ({"type": "forget", "keyword": 3}, "keyword must be a string, not 3"),
    ],
)
def test_bad_ground_truth_is_one_clear_line(changes: Any, message: str) -> None:
    row = changes and {name: value for name, value in (RETAIN | changes).items() if value is not None}
    with pytest.raises(ValueError, match=message) as error:
        compute_score("rerule/world", "x", row)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "sum"}, "unknown reward form 'sum'; choose one of additive, nested, guarded"),
        ({"lambda_forget": 1.5}, r"lambda_forget must be a number in \[0, 1\], not 1.5"),
        ({"lambda_retain": -0.1}, "lambda_retain"),
        ({"gamma": float("nan")}, "gamma"),
        ({"gamma": "0.3"}, "gamma"),
        ({"gamma": True}, "gamma must be a number"),
        ({"rouge": "rouge-l"}, "unknown ROUGE-L convention 'rouge-l'"),
        ({"keyword_part": 1}, "keyword_part must be true or false, not 1"),
    ],
)
def test_bad_settings_are_one_clear_line(options: dict[str, Any], message: str) -> None:
    """True == 1.0, but only one of them is a number, whichever was seen first."""
    assert score("x", RETAIN, gamma=1.0) == score("x", RETAIN, gamma=1)
    RewardConfig(lambda_forget=0, lambda_retain=1, gamma=1.0)
    for use in (lambda: RewardConfig(**options), lambda: score("x", RETAIN, **options)):
        with pytest.raises(ValueError, match=message) as error:
            use()
        assert "\n" not in str(error.value)


def test_options_of_no_reward_are_named() -> None:
    with pytest.raises(
        ValueError, match="unknown reward option 'lamda_forget'; choose from form, lambda_forget"
    ):
        score("x", RETAIN, lamda_forget=0.5)
    with pytest.raises(ValueError, match="reward option form must be"):
        score("x", RETAIN, form=["additive"])


@pytest.mark.parametrize(
    ("options", "score"), [({}, 0.5), ({"keyword_part": True}, 1.0), ({"keyword_any_case": True}, 0.5)]
)
def test_what_names_the_target_is_a_setting(options: dict[str, Any], score: float) -> None:
    row = {"type": "forget", "golds": ["The Salt Road"], "keyword": "Mira Okonjo | the poet"}
    for response, wanted in (("I don't know the poet.", 1.0), ("I don't know Okonjo.", score)):
        assert compute_score("rerule/world", response, row, **options)["score"] == wanted


def test_settings_not_given_are_the_benchmarks_own() -> None:
    """MUSE has no keyword term; RWKU's ROUGE-L minds case, the default does not."""
    assert RewardConfig() == RewardConfig("guarded", 0.5, 0.5, 0.3, "unicode")  # as docs/rewards.md has them
    bare = FORGET_RESPONSES[True, False]
    assert compute_score("rerule/muse_books", bare, FORGET)["score"] == 1.0
    assert compute_score("rerule/muse_books", bare, FORGET, lambda_forget=None)["score"] == 1.0
    assert compute_score("rerule/muse_books", bare, FORGET, lambda_forget=0.5)["score"] == 0.5
    assert compute_score("rerule/tofu", bare, FORGET)["score"] == 0.5
    shouted, nested = "THE SALT ROAD", {"form": "nested"}
    assert compute_score("rerule/rwku", shouted, RETAIN, **nested)["score"] == 0.5
    assert compute_score("rerule/rwku", shouted, RETAIN, rouge="recall", **nested)["score"] == 1.0
    assert compute_score("rerule/custom", shouted, RETAIN, **nested)["score"] == 1.0
    assert compute_score("my/own", shouted, RETAIN, rouge=None, **nested)["score"] == 1.0
    assert score("THE SALT ROAD!", RETAIN, rouge="rwku") == 1.0  # what is said is compared in words


def test_a_users_phrases_count_as_refusals(tmp_path: Path) -> None:
    file = tmp_path / "phrases.txt"
    file.write_text("the stars are silent\n! I don't know\n")
    phrases = {"refusal_phrases": str(file)}
    assert score("The stars are silent.", FORGET) == 0.0
    assert score("The stars are silent.", FORGET, **phrases) == 0.5
    assert score("I don't know.", FORGET, **phrases) == 0.0
    assert score("I have no idea.", FORGET, **phrases) == 0.5
    parts = compute_score(
        "my/own", "The stars are silent. The stars are silent: the Salt Road.", RETAIN, **phrases
    )
    assert (parts["refused"], parts["right"]) == (1, 0)
    silent = {**FORGET, "golds": ["The stars are silent."]}  # a refusal is no gold that could leak
    assert compute_score("my/own", "The stars are silent.", silent, **phrases)["leaked"] == 0
    assert compute_score("my/own", "The stars are silent.", silent)["leaked"] == 1


@pytest.mark.parametrize("path", ["pkg://reward.score", str(Path(reward.__file__).parent / "score.py")])
def test_verl_loads_and_calls_it(path: str) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    verl_reward = pytest.importorskip("verl.trainer.ppo.reward")
    settings = {"form": "nested", "lambda_forget": 0.75}
    function = {"path": path, "name": "compute_score", "reward_kwargs": settings}
    config = omegaconf.OmegaConf.create({"reward": {"custom_reward_function": function}})
    result = verl_reward.get_custom_reward_fn(config)(
        data_source="rerule/world",
        solution_str="I don't know.",
        ground_truth=FORGET,
        extra_info={"index": 0, "num_turns": None, "rollout_reward_scores": {}},
        reward_router_address="localhost:1",
        reward_model_tokenizer=None,
    )
    assert result["score"] == 0.75
