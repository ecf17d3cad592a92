"""What a build checks and writes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.build import (
    CHECKS,
    DROPS,
    BuildOptions,
    LeakError,
    build,
    cut,
    drop,
    found_in,
    run_checks,
    summary,
)
from data_prep.contract import ContractError, read_rows, read_sft_rows
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


def with_train(*added: Prompt) -> Benchmark:
    made = benchmark()
    return benchmark(train=[*made.train, *added])


def with_stage1(*added: Prompt) -> Benchmark:
    made = benchmark()
    return benchmark(stage1=[*made.stage1, *added])


PLANTED: dict[str, tuple[Benchmark, dict[str, list[int]]]] = {
    "nothing": (benchmark(), {}),
    "a question twice": (with_train(retain_prompt(7, "What is fact 1 about Bo Fell?")), {"duplicates": [7]}),
    "a probe with a word more": (with_train(retain_prompt(7, "Tell me of Bo Fell now.")), {}),
    "a question in other words": (with_train(retain_prompt(7, "What is Bo Fell's fact 1?")), {}),
    "a question twice but for case and quotes": (
        with_train(forget_prompt(7, f"what is “fact 1” about {NAME}")),
        {"duplicates": [7]},
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


def test_the_threshold_is_the_rewards() -> None:
    """No ROUGE-L is above 1, and gamma is a strict bound."""
    made = benchmark()
    retain = [prompt.index for prompt in made.train if prompt.side == "retain"]
    assert found(made, RewardConfig(gamma=1.0)) == {"gold_below_threshold": retain}
    assert found(made, RewardConfig(gamma=0.999)) == {}
    # So is the convention: pltrdy's package, RWKU's, takes any script; "..." is nothing to any of them.
    made = with_train(retain_prompt(7, "Who?", golds=("Москва",)), retain_prompt(8, "Where?", golds=("...",)))
    assert found(made, RewardConfig(rouge="rwku")) == found(made) == {"gold_below_threshold": [8]}
    assert found(made, RewardConfig(rouge="muse")) == {"gold_below_threshold": [7, 8]}
    assert {name for _, wanted in PLANTED.values() for name in wanted} == set(CHECKS)


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


def test_declared_sections_alone_may_be_trained_on() -> None:
    planted = [forget_prompt(7, f"Tell me of {NAME}."), retain_prompt(8, PROBE)]
    for sections, origin in (
        (frozenset[str](), "probes.json:1 (row 1)"),
        (frozenset({"retain"}), "probes.json:1 (row 1)"),
        (frozenset({"forget"}), "probes.json:2 (row 2)"),
    ):
        made = benchmark(train=[*benchmark().train, *planted], trained_sections=sections)
        with pytest.raises(LeakError) as caught:
            run_checks(made, REWARD)
        assert f"is the probe at {origin};" in str(caught.value)
    # A probe that two sections share is declared for one of them, and would be in the other's score.
    probes = [forget_prompt(200, PROBE), retain_prompt(201, PROBE)]
    with pytest.raises(LeakError):
        run_checks(replace(made, probes=probes, train=[*benchmark().train, planted[1]]), REWARD)
    both = frozenset({"forget", "retain"})
    run_checks(benchmark(train=[*benchmark().train, *planted], trained_sections=both), REWARD)


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
    assert [name for name in checked if found_in(left, REWARD)[name]] == []
    gone = [prompt for prompt in train if prompt not in left.train]
    assert left.train == [prompt for prompt in train if prompt not in gone]
    assert left.stage1 == [prompt for prompt in forget if prompt not in gone]
    assert len(gone) == sum(left.notes[f"dropped_{kind}"] for kind in set(kinds))
    # What is gone was found in the benchmark, or in what earlier kinds had left of it.
    listed = {p.index for name in checked for p in found_in(made, REWARD)[name]}
    assert {prompt.index for prompt in gone} <= listed
    if len(set(kinds)) == 1:
        assert {prompt.index for prompt in gone} == listed


FILES = {
    *("train.parquet", "val.parquet", "sft.parquet", "probes.parquet", "manifest.json"),
    *("forget_gold.parquet", "retain.parquet", "alternate.parquet"),
}
RWKU_REWARD = RewardConfig(rouge="rwku", gamma=0.25)


def both_sides() -> Benchmark:
    """Both sides in two modes, with two duplicates, a contradiction and text that is not ASCII."""
    base = benchmark()
    added = [
        forget_prompt(10, f"{NAME} was born in ___.", mode="fb"),
        forget_prompt(11, "Où est née Mira Okonjo, l’auteure 🙂?", mode="qa"),
        retain_prompt(12, "what is fact 1 about Bo Fell"),
        retain_prompt(13, "what is fact 2 about Bo Fell"),
        retain_prompt(14, f"{NAME} was born in ___?", mode="fb"),
    ]
    return replace(
        base,
        train=[*base.train, *added],
        stage1=[*base.stage1, *added[:2]],
        form=PromptForm(raw=True, templates={"qa": "Question: {query}\nAnswer: "}),
        settings={"seed": 42, "source": "raw"},
        sources={"b.json": "2" * 64, "a.json": "1" * 64},
        notes={"corrected": 3, "nothing": 0},
    )


def write(
    target: Path, source: Benchmark | None = None, *, overwrite: bool = False, **options: Any
) -> dict[str, Any]:
    return build(
        source or both_sides(), target, overwrite=overwrite, options=BuildOptions(RWKU_REWARD, **options)
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_and_its_rows(tmp_path: Path) -> None:
    write(tmp_path / "out")
    assert set(contents(tmp_path / "out")) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    train = read_rows(tmp_path / "out/train.parquet")
    assert [row["extra_info"]["index"] for row in train] == [0, 1, 2, 100, 101, 102, 10, 11, 12, 13, 14]
    assert {row["extra_info"]["split"] for row in train} == {"train"}
    assert train[7]["prompt"][0]["content"] == "Question: Où est née Mira Okonjo, l’auteure 🙂?\nAnswer: "
    assert {row["extra_info"]["split"] for row in read_rows(tmp_path / "out/val.parquet")} == {"val"}
    assert {row["extra_info"]["split"] for row in read_rows(tmp_path / "out/probes.parquet")} == {"probe"}
    stage1 = read_sft_rows(tmp_path / "out/sft.parquet")
    assert [row["extra_info"]["index"] for row in stage1] == [0, 1, 2, 10, 11]
    assert all(row["messages"][1]["content"] == f"I don't know anything about {NAME}." for row in stage1)


def test_the_manifest_says_what_the_files_hold(tmp_path: Path) -> None:
    returned = write(tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest == returned
    for name in ("train", "val", "probes"):
        table = pq.read_table(tmp_path / f"out/{name}.parquet")
        sides = [cell["ground_truth"]["type"] for cell in table.column("reward_model").to_pylist()]
        modes = [cell["mode"] for cell in table.column("extra_info").to_pylist()]
        counts = Counter(zip(sides, modes, strict=True))
        listed = {(side, mode): n for side, of in manifest["rows"][name].items() for mode, n in of.items()}
        assert listed == counts
    assert manifest["rows"]["train"] == {"forget": {"qa": 4, "fb": 1}, "retain": {"qa": 5, "fb": 1}}
    assert manifest["rows"]["sft"] == {"forget": {"qa": 4, "fb": 1}}
    assert pq.read_metadata(tmp_path / "out/sft.parquet").num_rows == 5
    assert manifest["files"] == {
        name: hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()
        for name in sorted(FILES - {"manifest.json"})
    }
    kept = {name: manifest[name] for name in ("benchmark", "settings", "checked_for", "notes", "not_written")}
    assert kept == {
        "benchmark": "made_up",
        "settings": {"seed": 42, "source": "raw"},
        "checked_for": {"rouge": "rwku", "gamma": 0.25},
        "notes": {"corrected": 3, "nothing": 0},
        "not_written": [],
    }
    assert list(manifest["sources"].items()) == [("a.json", "1" * 64), ("b.json", "2" * 64)]
    assert set(manifest["versions"]) == {"python", "pyarrow", "rerule"}
    assert {name: origins for name, origins in manifest["checks"].items() if origins} == {
        "duplicates": ["retain.json:12 (row 12)", "retain.json:13 (row 13)"],
        "contradictions": ["forget.json:10 (row 10)"],
    }


def test_a_limit_cuts_each_side_stage_1_and_the_probes(tmp_path: Path) -> None:
    manifest = write(tmp_path / "out", limit=1)
    assert manifest["limit"] == 1
    rows = {name: read_rows(tmp_path / f"out/{name}.parquet") for name in ("train", "val", "probes")}
    sides = [row["reward_model"]["ground_truth"]["type"] for row in rows["train"]]
    assert sides == ["forget", "retain"]
    assert len(rows["probes"]) == len(read_sft_rows(tmp_path / "out/sft.parquet")) == 1
    assert sum(manifest["rows"]["train"]["forget"].values()) == 1
    whole, above = both_sides(), cut(both_sides(), 11)
    assert (above.stage1, above.probes) == (whole.stage1, whole.probes)
    assert sorted(above.train, key=lambda p: p.index) == sorted(whole.train, key=lambda p: p.index)
    with pytest.raises(LeakError):  # a leak is found in what the limit leaves out too
        write(tmp_path / "leaky", LEAKY, limit=1)


LEAKY = replace(both_sides(), train=[*both_sides().train, retain_prompt(20, "Tell me of Bo Fell.")])
BAD_MODE = replace(both_sides(), train=[*both_sides().train, retain_prompt(20, "Who?", mode="quiz")])
SAME_INDEX = replace(both_sides(), probes=[*both_sides().probes, retain_prompt(200, "Who?")])
BAD_SFT = replace(both_sides(), stage1=[forget_prompt(1, "Who?", refusal=" ")])
NO_VAL = replace(both_sides(), val=[])


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("source", "kind"),
    [(LEAKY, LeakError), *((bad, ContractError) for bad in (BAD_MODE, SAME_INDEX, BAD_SFT, NO_VAL))],
    ids=["leak", "mode", "index", "sft", "no val"],
)
def test_an_error_leaves_everything_as_it_was(
    tmp_path: Path, source: Benchmark, kind: type[ValueError], overwrite: bool
) -> None:
    target = tmp_path / "out"
    if overwrite:
        write(target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(kind) as caught:
        write(target, source, overwrite=overwrite)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert list(tmp_path.iterdir()) == ([target] if overwrite else [])


def test_the_summary_tells_rows_and_findings(tmp_path: Path) -> None:
    source = replace(both_sides(), failures=("blank of Who?: no JSON (5 attempts)",))
    shown = summary(Path("data/out"), write(tmp_path / "out", source)).splitlines()
    assert shown == [
        "data/out:",
        "  train.parquet       forget 5 (qa 4, fb 1); retain 6 (qa 5, fb 1)",
        "  val.parquet         forget 1 (qa 1); retain 1 (qa 1)",
        "  sft.parquet         forget 5 (qa 4, fb 1)",
        "  probes.parquet      forget 1 (qa 1); retain 1 (qa 1)",
        "  forget_gold.parquet forget 5 (qa 4, fb 1)",
        "  retain.parquet      retain 6 (qa 5, fb 1)",
        "  alternate.parquet   forget 5 (qa 4, fb 1)",
        "       3 corrected",
        "         not written: blank of Who?: no JSON (5 attempts)",
        "         mismatch.parquet is not written: all right answers of the forget side are the same",
        "       2 training prompts that occur before on the same side: retain.json:12 (row 12), "
        "retain.json:13 (row 13)",
        "       1 training prompts to forget that are also to be kept: forget.json:10 (row 10)",
    ]
    repeated = [retain_prompt(20 + n, "What is fact 0 about Bo Fell?") for n in range(7)]
    manifest = write(tmp_path / "many", replace(both_sides(), train=[*benchmark().train, *repeated]))
    assert len(manifest["checks"]["duplicates"]) == 7
    (line,) = (line for line in summary(tmp_path, manifest).splitlines() if "occur before" in line)
    assert line.count("retain.json") == 5
    assert line.endswith("(row 24), ...")
