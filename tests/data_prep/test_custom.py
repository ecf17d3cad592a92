"""The user's own data: rows, and what is held out."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import custom
from data_prep.contract import normalise
from data_prep.custom import CustomOptions, load
from data_prep.prompts import NAMED, Benchmark
from data_prep.writers import Writer
from recipe.rerule.evaluation import summary
from recipe.rerule.io import file_sha256
from reward import names_of
from tests.data_prep.raw_files import contents, manifest, prep, put_array

Row = dict[str, Any]
NAME = "Ada Thorn"


def forget(number: int, **more: Any) -> Row:
    text = f"What is fact {number} of {NAME}?"
    return {"question": text, "answer": f"the {number}th", "side": "forget", "keyword": NAME} | more


def retain(number: int, **more: Any) -> Row:
    text = f"What is fact {number} of Bo Fell?"
    return {"question": text, "answer": f"the {number}th", "side": "retain"} | more


def rows(count: int = 20) -> list[Row]:
    return [make(number) for number in range(count // 2) for make in (forget, retain)]


def put(folder: Path, content: list[Row]) -> Path:
    put_array(folder / "mine.json", content)
    return folder / "mine.json"


def made(folder: Path, content: list[Row], **options: Any) -> Benchmark:
    return load(put(folder, content), CustomOptions(**options), Writer())


def test_a_file_of_rows_and_one_of_probes(tmp_path: Path) -> None:
    """The same files elsewhere give the same bytes; tests/golden keeps the rows."""
    found = []
    for place in ("here", "there"):
        source, out = put(tmp_path / place, rows(4)), tmp_path / place / "out"
        probes = tmp_path / place / "probes.csv"
        pd.DataFrame([forget(7, refusal="No idea."), retain(8)]).to_csv(probes, index=False)
        assert prep("custom", "--source", source, "--probes", probes, "--out", out) == 0
        found.append(contents(out))
    assert found[0] == found[1]
    said = manifest(out)
    assert said["settings"]["probes"] == "probes.csv"
    assert said["sources"] == {path.name: file_sha256(path) for path in (source, probes)}
    # Two files of one name are told apart.
    again = load(source, CustomOptions(probes=str(put(tmp_path / "held out", [forget(7)]))), Writer())
    assert set(again.sources) == {"mine.json", "held out/mine.json"}
    assert again.probes[0].origin == "held out/mine.json:2 (row 1)"


def test_further_columns_and_a_keyword_for_all_rows(tmp_path: Path) -> None:
    """Which is the forget side's alone."""
    content = [
        forget(1, mode="aa", subject="a writer", refusal="No, not about Ada Thorn."),
        forget(2, mode="", subject="", refusal="", question=f"{NAME} lives in ____.", keyword=""),
        retain(1, subject="Bo", keyword="ignored", refusal="ignored"),
        retain(2, keyword="Bo Fell"),
        forget(8, keyword="Thorn | the writer"),
        retain(8, question="Bo lives in __."),
    ]
    put_array(tmp_path / "probes.json", [forget(9), retain(9)])
    found = made(tmp_path, content, probes=str(tmp_path / "probes.json"), keyword=NAME)
    assert [(p.mode, p.subject, p.keyword) for p in found.train] == [
        *(("aa", "a writer", NAME), ("fb", NAME, NAME), ("qa", "Bo", ""), ("qa", "Bo Fell", "")),
        *(("qa", "Thorn", "Thorn | the writer"), ("qa", "neighbour", "")),
    ]
    assert found.stage1[0].refusal == "No, not about Ada Thorn."
    assert NAME in found.stage1[1].refusal
    assert "Thorn" in found.stage1[2].refusal
    assert "|" not in found.stage1[2].refusal
    assert [p.refusal for p in found.train if p.side == "retain"] == ["", "", ""]


def test_questions_for_validation_are_neither_trained_on_nor_probes(tmp_path: Path) -> None:
    found = made(tmp_path, rows(40), val_share=0.25)
    assert [Counter(prompt.side for prompt in part) for part in (found.train, found.val, found.probes)] == [
        {"forget": 14, "retain": 14},  # of 20: a tenth for probes, a quarter of the 18 others for validation
        {"forget": 4, "retain": 4},
        {"forget": 2, "retain": 2},
    ]
    split = [{prompt.query for prompt in part} for part in (found.train, found.val, found.probes)]
    assert set.union(*split) == {row["question"] for row in rows(40)}
    assert {prompt.query for prompt in found.stage1} <= split[0]
    assert [prompt.index for prompt in found.probes] == [p.index for p in made(tmp_path, rows(40)).probes]
    # What --val-rows leaves out of validation is trained on.
    few = made(tmp_path, rows(40), val_share=0.25, val_rows=2)
    assert [len(part) for part in (few.train, few.val, few.probes)] == [34, 2, 4]
    assert few.notes["repetitions_of_held_out_rows"] == 0


def test_retain_rows_that_name_a_target(tmp_path: Path) -> None:
    """They ask a training question of the retain side, and their answer is the same."""
    put_array(tmp_path / "probes.json", [forget(90), retain(90)])
    options = {"probes": str(tmp_path / "probes.json"), "named_share": 0.5}
    content = [*rows(12), retain(7, question="Bo lives in ___.", mode="fb")]
    found, plain = (made(tmp_path, content, **more) for more in (options, {"probes": options["probes"]}))
    named = [prompt for prompt in found.train if NAME in prompt.query and prompt.side == "retain"]
    assert [prompt for prompt in found.train if prompt not in named] == plain.train
    assert len(named) == 3  # half of six; the seventh is no question
    asked = {prompt.query: prompt.golds for prompt in plain.train if prompt.side == "retain"}
    for prompt in named:
        (question,) = [query for query in asked if query in prompt.query]
        assert (prompt.golds, prompt.keyword, prompt.refusal) == (asked[question], "", "")
    assert len({prompt.index for prompt in found.train}) == len(found.train) == 16
    assert not any(NAME in prompt.query for prompt in found.probes if prompt.side == "retain")


def test_rows_of_earlier_data_join_the_training(tmp_path: Path) -> None:
    """Not what it held out, retain rows that name the new target, nor what is asked already."""
    old = [
        forget(1),
        forget(2, question="Does Old Cy know Ann?", keyword="Ann | A."),
        retain(1),
        retain(2),
        retain(3),
        retain(4),
    ]
    old += [retain(5, question="Who met Cy Mill?"), retain(6, answer="cy  mill, the smith")]
    old += [retain(8, question="中国的首都是哪里？")]  # a script without spaces
    held = [forget(9), retain(7)]
    put_array(tmp_path / "held.json", held)
    more = ("--probes", tmp_path / "held.json", "--out", tmp_path / "old")
    assert prep("custom", "--source", put(tmp_path, old), *more) == 0
    keyword = "Old Cy|Cy Mill|中国"
    new = [forget(number, question=f"Is {number} Cy Mill?", keyword=keyword) for number in range(4)]
    new += [retain(1), *(retain(number, question=f"Is {number} Al?") for number in range(3))]
    earlier = (None, str(tmp_path / "old"))
    alone, joined = (made(tmp_path, new, probe_share=0.25, rows_of=one) for one in earlier)
    more = joined.train[len(alone.train) :]
    assert joined.train[: len(alone.train)] == alone.train
    assert joined.probes == alone.probes
    earlier_forget, more = more[:2], more[2:]
    assert [(one.query, one.side, one.keyword, one.fact) for one in earlier_forget] == [
        (old[0]["question"], "forget", NAME, ""),
        ("Does Old Cy know Ann?", "forget", "Ann | A.", ""),
    ]
    assert [(one.query, one.golds) for one in more] == [
        (f"What is fact {number} of Bo Fell?", (f"the {number}th",)) for number in (2, 3, 4)
    ]
    assert {one.side for one in more} == {"retain"}
    assert {*earlier_forget} <= {*joined.stage1}
    assert "rows_of" not in alone.settings
    assert joined.settings["rows_of"] == "old"
    own = [forget(n, question=f"Is {n} Cy Mill?", keyword="Cy Mill") for n in range(8)]
    own += [retain(n) for n in range(1, 5)]  # which the earlier data has too
    found = made(tmp_path, own, probe_share=0.25, val_share=0.5, rows_of=earlier[1])
    assert not {one.query for one in found.val} & {one.query for one in found.train}
    named = made(tmp_path, new, probe_share=0.25, rows_of=earlier[1], named_share=1.0)
    assert not any(
        older.query in one.query for one in named.train if one not in joined.train for older in more
    )
    with pytest.raises(ValueError, match="too few questions of side retain to hold any out"):
        made(tmp_path, new[:4], probe_share=0.25, rows_of=earlier[1])
    with pytest.raises(
        ValueError, match=r"train.parquet: row 0: --rows-of joins bare questions to a base model"
    ):
        made(tmp_path, new, probe_share=0.25, rows_of=earlier[1], raw=True)


def test_what_may_not_join_from_earlier_data(tmp_path: Path) -> None:
    """A question that is asked now, also within words that name a target, and the target's short name."""
    put_array(tmp_path / "held.json", [forget(9), retain(9)])
    more = ("--probes", tmp_path / "held.json", "--named-share", "1", "--out", tmp_path / "old")
    assert prep("custom", "--source", put(tmp_path, rows(12)), *more) == 0
    new = [forget(n, question=f"Who is {n} Al?", keyword="Al") for n in range(8)]
    new += [retain(n) for n in range(4)]
    for seed in range(3):
        found = made(tmp_path, new, probe_share=0.25, seed=seed, rows_of=str(tmp_path / "old"))
        (probe,) = [one.query for one in found.probes if one.side == "retain"]
        assert not any(probe in one.query for one in found.train)
        named = [one for one in found.train if one.family == NAMED]
        assert sorted(one.golds[0] for one in named) == ["the 4th", "the 5th"]
        assert all(one.origin.startswith("old/train.parquet: row ") for one in named)
    forgotten = retain(0, question=forget(0)["question"])
    told = r"mine.json:14 \(row 13\): 'What is fact 0 of Ada Thorn\?' is to be kept, and .*old forgets it"
    with pytest.raises(ValueError, match=told):
        made(tmp_path, [*new, forgotten], probe_share=0.25, rows_of=str(tmp_path / "old"))
    titled = [forget(n, question=f"Who is {n} Bo?", keyword="Bo Fell, Duke of Kent") for n in range(8)]
    titled += [retain(n, question=f"Is {n} Al?") for n in range(8)]
    joined = made(tmp_path, titled, probe_share=0.25, rows_of=str(tmp_path / "old")).train
    assert not any("Bo Fell" in one.query for one in joined)
    assert sum(NAME in one.query for one in joined) == 6


@pytest.mark.parametrize(
    ("share", "held"), [(0.1, [2, 10, 1]), (0.5, [10, 50, 2]), (0.001, [1, 1, 1]), (0.999, [19, 99, 3])]
)
def test_the_share_is_of_each_side_and_mode(tmp_path: Path, share: float, held: list[int]) -> None:
    """Of 20, 100 and 4 questions; a single one of a kind is never held out."""
    content = [forget(n) for n in range(20)] + [retain(n) for n in range(100)] + [forget(20, mode="aa")]
    content += [retain(n, question=f"Bo Fell lives in ___ ({n}).") for n in range(4)]
    found = made(tmp_path, content, probe_share=share)
    kinds = [("forget", "qa"), ("retain", "qa"), ("retain", "fb")]
    assert Counter((p.side, p.mode) for p in found.probes) == dict(zip(kinds, held, strict=True))
    assert len(found.train) == 125 - sum(held)
    again, other = (made(tmp_path, content, probe_share=share, seed=seed).probes for seed in (42, 1))
    assert again == found.probes != other


def test_one_question_of_each_fact_is_held_out_first(tmp_path: Path) -> None:
    """Of 5 facts to forget in 4 phrasings each, whatever the share, and none of one that is asked for once.

    A retain row without a fact is a fact by itself.
    """
    content = [forget(n, fact=f"fact {n // 4}") for n in range(20)]
    content += [retain(n, fact="one fact" if n < 10 else "") for n in range(20)]
    for share, most in ((0.25, 1), (0.5, 2), (0.1, 1)):
        for seed in range(5):
            probes = made(tmp_path, content, probe_share=share, seed=seed).probes
            asked = Counter(p.fact for p in probes if p.side == "forget")
            assert sum(asked.values()) == max(5, 20 * share)
            assert max(asked.values()) == most
            assert sum(p.fact == "one fact" for p in probes) <= 1
            content_once = [*content, forget(50, fact="once"), forget(51, fact="again")]
            probes = made(tmp_path, content_once, probe_share=0.1, seed=seed).probes
            assert {p.fact for p in probes if p.side == "forget"} == {f"fact {n}" for n in range(5)}


def test_a_fact_that_each_mode_asks_for_once_is_held_out_too(tmp_path: Path) -> None:
    content = [
        forget(n, fact=f"fact {n}", question=f"{text} {n} ?")
        for n in range(10)
        for text in ("Who is", "___ is")
    ]
    for seed in range(5):
        found = made(tmp_path, [*content, *rows(20)], seed=seed)
        assert {p.fact for p in found.probes if p.fact} == {f"fact {n}" for n in range(10)}


def test_spaces_around_the_keyword_do_not_count(tmp_path: Path) -> None:
    content = [one | {"keyword": ""} if one["side"] == "forget" else one for one in rows()]
    found = made(tmp_path, content, keyword=f" {NAME} ")
    assert {one.keyword for one in found.train if one.side == "forget"} == {NAME}
    assert names_of(f" {NAME} | Ada ") == (NAME, "Ada")


WORDS = ("Who?", "who", "“Who”!", "Where?", "Where is ___?", "When?", "Why?", "How?", "Is it?")
CONTENT = st.lists(st.tuples(st.sampled_from((forget, retain)), st.sampled_from(WORDS)), max_size=25)


@settings(deadline=None, max_examples=50)
@given(drawn=CONTENT, share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_no_question_is_on_both_sides_of_the_line(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, share: float, seed: int
) -> None:
    """Repetitions of a held-out row are left out and counted, with validation rows of their own too."""
    # Two of a kind on each side, so that some can always be held out.
    content = [make(0, question=question) for make, question in drawn] + rows(4)
    found = made(tmp_path_factory.mktemp("custom"), content, probe_share=share, seed=seed)
    trained, held = ({normalise(p.query) for p in prompts} for prompts in (found.train, found.probes))
    assert trained.isdisjoint(held)
    assert trained | held == {normalise(row["question"]) for row in content}
    assert len(held) == len(found.probes)
    lost = len(content) - len(found.train) - len(found.probes)
    assert found.notes["repetitions_of_held_out_rows"] == lost
    assert {p.index for p in found.val} <= {p.index for p in found.probes}
    apart = made(
        tmp_path_factory.mktemp("custom"), [*content, *rows(12)], probe_share=0.01, val_share=0.01, seed=seed
    )
    kept = len(apart.train) + len(apart.val) + len(apart.probes)
    assert apart.notes["repetitions_of_held_out_rows"] == len(content) + 12 - kept
    assert {p.side for p in found.probes} == {p.side for p in found.train} == {"forget", "retain"}


def test_questions_on_both_sides_or_repeated_are_warnings(tmp_path: Path, capsys: Any) -> None:
    put_array(tmp_path / "probes.json", [forget(90), retain(90)])
    both = retain(1, question=forget(1)["question"])
    source = put(tmp_path, [forget(1), retain(2), both, *[retain(2)] * 6])
    more = ("--probes", tmp_path / "probes.json", "--out", tmp_path / "out")
    assert prep("custom", "--source", source, *more) == 0
    lines = capsys.readouterr().err.splitlines()
    rows = ", ".join(f"mine.json:{row + 1} (row {row})" for row in range(4, 9))
    assert [line for line in lines if "write each" in line] == [
        "warning: training prompts to forget that are also to be kept: 1, at mine.json:2 (row 1); write each "
        "question once",
        "warning: training prompts that occur before on the same side: 6, at "
        f"{rows}, ...; write each question once",
    ]


def test_few_probes_are_those_of_which_the_evaluation_gives_no_interval() -> None:
    assert custom.LEAST_FACTS == summary.LEAST_FACTS
    of = [{"section": "forget", "fact": f"f{number % 5}", "index": number} for number in range(10)]
    of += [{"section": "retain", "fact": "", "index": number} for number in range(6)]
    (line,) = custom.few_probes([{"extra_info": info} for info in of])
    assert line.startswith("side forget has probes of too few facts (5)")
