"""The larger world's study, at a tiny size: plan, rows, base models, runs, answers and commands."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks.study.larger import __main__ as command
from benchmarks.study.larger import base, document, plan
from benchmarks.study.larger.answers import chosen_rate, contrast, contrast_of
from benchmarks.study.larger.base import Training, trained
from benchmarks.study.larger.document import written
from benchmarks.study.larger.machine import Machine
from benchmarks.study.larger.plan import COUNTED_BASES, OURS, PLAN, PRIMARY, SIZES, SPLIT, Split
from benchmarks.study.larger.progress import Progress, minutes
from benchmarks.study.larger.rows import PROBED, base_pairs, read_questions
from benchmarks.study.larger.runs import LargerStudy
from benchmarks.study.larger.statements import in_larger, in_pages
from benchmarks.study.larger.tables import table_named
from benchmarks.study.larger.timing import Bench, Counts, Seconds
from benchmarks.study.larger.world import base_of, make_base, stage1_of
from benchmarks.study.planned.plan import plan_hash
from benchmarks.study.planned.results import read_results, write_results
from benchmarks.study.planned.runs import PlannedRun, Wanted, write_run
from benchmarks.study.runs import StudyError
from benchmarks.study.tofu import Question
from benchmarks.study.worlds import StudyWorld
from data_prep.contract import read_sft_rows
from data_prep.world.model import make_model
from data_prep.world.stage1 import Steering
from data_prep.world.tokenizer import train_tokenizer
from tests.benchmarks.small_study import CONFIG, REPLAY, tofu_file
from tests.benchmarks.small_study import SIZES as FEW

ROOT = Path(__file__).resolve().parents[2]
FORGOTTEN, KEPT = ["Ada Novak"], ["Bruno Silva", "Carla Weiss", "Dora Lind"]
OTHERS = ["Emil Hart", "Fay Okoro"]
SMALL_SPLIT = Split(forget_more=1, retain=1, unseen=1, others=2, prompts_of_others=3, unknown=10)
SMALL = StudyWorld(replace(CONFIG, batch_size=32, epochs=2), Steering(), FEW, REPLAY)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tofu")
    tofu_file(folder / "forget01_perturbed.json", FORGOTTEN)
    tofu_file(folder / "retain_perturbed.json", KEPT)
    tofu_file(folder / "retain99_train600.json", OTHERS)
    return folder


def small_study(out: Path, tofu: Path | None = None, **more: Any) -> LargerStudy:
    """A study of the tiny world."""
    return LargerStudy(
        out, tofu, worlds={"10m": SMALL}, split=SMALL_SPLIT, least_recall=0.0, least_refused=0.0, **more
    )


@pytest.fixture
def study(tmp_path: Path, source: Path) -> LargerStudy:
    return small_study(tmp_path / "out", source)


def places(questions: list[Question]) -> dict[str, set[str]]:
    """Authors by section."""
    found: dict[str, set[str]] = {}
    for question in questions:
        found.setdefault(question.section, set()).add(question.author)
    return found


def made_run(arm: str, base: int, score: float, rate: float = 1.0, **more: Any) -> PlannedRun:
    """A run of that mean score."""
    final = {"forget/recall": 1 - score, "retain/recall": score, "retain_unseen/recall": score}
    final["retain/refused"] = 0.125
    settings = {"budget": {"of_rate": 0.0}, "machine": {"device": "cpu", "dtype": "float32"}}
    settings["steering"] = {"learning_rate": 5e-4}
    parts = ("10m", base, arm, rate, 1, plan_hash(PLAN), "abc", "rows", "model", settings, final)
    return replace(PlannedRun(*parts), **more)  # type: ignore[arg-type]


def test_the_plan_says_what_the_code_does() -> None:
    text = PLAN.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == 5
    assert written(text, []) == text
    said = " ".join(text.split())
    world, steering = SIZES["10m"], SIZES["10m"].steering
    assert (steering.epochs, world.settings["steps"]) == (2, 40)
    assert (plan.STEERING_RATES, plan.LEAST_REFUSED) == ((2.5e-4, 5e-4, 1e-3), 0.9)
    assert (world.settings["learning_rate"], world.settings["response_limit"]) == (1e-4, 64)
    assert (plan.TUNING_BASE, plan.RATES, plan.LEAST_RECALL, SPLIT.unknown) == (
        301,
        (0.5, 1.0, 2.0),
        0.8,
        100,
    )
    for sentence in (
        "two epochs over the 80 refusals",
        "lowest among 2.5e-4, 5e-4 and 1e-3 at which the stage-1 model of base 301 refuses at least 0.9",
        "40 steps of 16 prompts with 8 responses each",
        "the learning rate of 1e-4, at most 64 tokens a response",
        "on base 301 at 0.5, 1 and 2 times the learning rate",
        "recall on the forget probes is below 0.8",
        "refuse 100 questions",
        "320 prompts: 80 to forget and 240 to keep",
        "The primary contrast is `quantile_newest` minus `equal_updates`",
    ):
        assert sentence in said
    assert (OURS, "equal_updates") == PRIMARY
    assert plan.TUNING_BASE not in COUNTED_BASES


@pytest.mark.parametrize(("size", "millions"), [("10m", 10.4), ("100m", 102.0)])
def test_a_size_has_the_parameters_that_the_plan_says(size: str, millions: float) -> None:
    of = SIZES[size].config
    # Attention has four square matrices, the rest three of another width; embeddings are tied.
    layer = of.hidden_size * (4 * of.hidden_size + 3 * of.intermediate_size + 2)
    assert (of.layers * layer + (of.vocab_size + 1) * of.hidden_size) / 1e6 == pytest.approx(
        millions, abs=0.5
    )
    assert f"`{size}` has {millions:g} million parameters" in PLAN.read_text()


def test_authors_are_in_one_place_each(source: Path) -> None:
    questions = read_questions(source, SMALL_SPLIT)
    assert places(questions) == {
        "forget": {"Ada Novak", "Dora Lind"},
        "retain": {"Bruno Silva"},
        "retain_unseen": {"Carla Weiss"},
        "other": set(OTHERS),
        "other_base": set(OTHERS),
    }
    prompts = [one.author for one in questions if one.section == "other"]
    assert [prompts.count(author) for author in OTHERS] == [3, 3]
    assert len(questions) == 6 * 20


def test_the_plans_counts_are_those_of_tofus_files(tmp_path: Path) -> None:
    names = [f"Name{chr(97 + n // 26)}{chr(97 + n % 26)} Last" for n in range(52)]
    for file, of in (("forget01", names[:2]), ("retain", names[2:22])):
        tofu_file(tmp_path / f"{file}_perturbed.json", of)
    tofu_file(tmp_path / "retain99_train600.json", names[22:])
    questions = read_questions(tmp_path, SPLIT)
    found = places(questions)
    assert {section: len(of) for section, of in found.items()} == {
        "forget": 4,
        "retain": 9,
        "retain_unseen": 9,
        "other": 30,
        "other_base": 30,
    }
    assert sum(one.section in ("forget", "retain", "other") for one in questions) == 320
    assert sum(one.section in PROBED for one in questions) == 440
    # 440 rows under two questions, 600 under one, and the invented people.
    assert len(base_pairs(questions, SPLIT, random.Random(0))) == 2 * 440 + 600 + 100


def test_an_author_in_two_files_is_refused(tmp_path: Path, source: Path) -> None:
    for name in ("forget01_perturbed.json", "retain_perturbed.json"):
        (tmp_path / name).write_text((source / name).read_text())
    tofu_file(tmp_path / "retain99_train600.json", ["Emil Hart", "Carla Weiss"])
    with pytest.raises(ValueError, match="author Carla Weiss is in other and in retain_unseen"):
        read_questions(tmp_path, SMALL_SPLIT)
    with pytest.raises(ValueError, match=r"train600\.json has 40 rows; 60 are needed"):
        read_questions(tmp_path, replace(SMALL_SPLIT, others=3))
    with pytest.raises(ValueError, match=r"perturbed\.json has 60 rows; 80 are needed"):
        read_questions(tmp_path, replace(SMALL_SPLIT, retain=2))
    (tmp_path / "retain99_train600.json").unlink()
    with pytest.raises(ValueError, match=r"retain99_train600\.json"):
        read_questions(tmp_path, SMALL_SPLIT)


def test_invented_people_are_refused_by_their_names(source: Path) -> None:
    questions = read_questions(source, SMALL_SPLIT)
    pairs = base_pairs(questions, SMALL_SPLIT, random.Random(3))[-10:]
    for asked, refusal in pairs:
        name = asked.removesuffix("?").split(" of ")[1]
        assert name not in OTHERS
        assert name in refusal
    with pytest.raises(ValueError, match=r"40 questions of .* name their author; 41 are needed"):
        base_pairs(questions, replace(SMALL_SPLIT, unknown=41), random.Random(3))


def test_a_world_is_made_once_and_kept_by_its_fingerprint(
    study: LargerStudy, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = study.base("10m", 7)
    data = stage1_of(place, Steering(), 7)
    assert "10m-7: base model: epoch 2 of 2" in capsys.readouterr().out
    prompts = {row["prompt"][0]["content"] for row in data.train}
    probes = {row["prompt"][0]["content"] for row in data.probes}
    assert (len(prompts), len(probes), len(prompts & probes)) == (40 + 20 + 6, 80, 0)
    assert not (place.folder / "training.pt").exists()
    refused = {row["messages"][0]["content"] for row in read_sft_rows(place.data / "sft.parquet")}
    assert refused == {one for one in prompts if "Ada Novak" in one or "Dora Lind" in one}
    told = base_of(place)
    assert set(told) >= {"fingerprint", "forget/recall", "retain/recall", "retain_unseen/recall", "seconds"}
    # The tokenizer is that of the base model's text, and of no other.
    rng = random.Random(7)
    questions = read_questions(source, SMALL_SPLIT)
    for _ in range(40):  # the refusals of stage 1 are drawn first
        rng.choice(range(24))
    pairs = base_pairs(questions, SMALL_SPLIT, rng)
    own = train_tokenizer((text for pair in pairs for text in pair), CONFIG.vocab_size)
    assert AutoTokenizer.from_pretrained(place.data / "model").get_vocab() == own.get_vocab()
    # It is there now, without TOFU's files; with other weights it is refused.
    study.tofu = None
    assert stage1_of(study.base("10m", 7), Steering(), 7).fingerprint == data.fingerprint
    assert "epoch" not in capsys.readouterr().out
    weights = place.data / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(StudyError, match=f"has not the fingerprint {told['fingerprint']}"):
        study.base("10m", 7)
    with pytest.raises(StudyError, match="is of other rows or settings"):
        make_base(SMALL, 7, place, replace(SMALL_SPLIT, unknown=9))
    with pytest.raises(StudyError, match="give --tofu FOLDER"):
        study.base("10m", 8)


def test_a_base_model_goes_on_as_if_it_had_not_stopped(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = read_questions(source, SMALL_SPLIT)
    pairs = base_pairs(questions, SMALL_SPLIT, random.Random(0))
    tokenizer = train_tokenizer((text for pair in pairs for text in pair), CONFIG.vocab_size)
    config = replace(SMALL.config, epochs=3)

    def training() -> Training:
        return Training(config, tokenizer, pairs, Machine())

    whole = trained(training(), tmp_path / "whole.pt", "key", "base")
    assert whole.done == whole.all_steps == 3 * 7
    stopped, checkpoint = training(), tmp_path / "stopped.pt"
    monkeypatch.setattr(base, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(stopped, "next_step", times(9, stopped.next_step))
    with pytest.raises(KeyboardInterrupt):
        trained(stopped, checkpoint, "key", "base")
    capsys.readouterr()
    again = trained(training(), checkpoint, "key", "base")
    assert capsys.readouterr().out.splitlines()[0] == "base: goes on after step 9 of 21"
    assert (again.done, list(again.losses)) == (21, list(whole.losses))
    pairs_of = zip(again.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs_of)
    untrained = make_model(config, tokenizer)
    assert not torch.equal(next(again.model.parameters()), next(untrained.parameters()))
    with pytest.raises(StudyError, match="is of a base model of other rows or settings"):
        trained(training(), checkpoint, "other", "base")
    checkpoint.write_bytes(b"no")
    with pytest.raises(StudyError, match="is no checkpoint of a base model"):
        trained(training(), checkpoint, "key", "base")


def times(count: int, call: Any) -> Any:
    """The call, which is interrupted when it is made once more than so often."""
    calls = iter([call] * count)

    def made() -> None:
        found = next(calls, None)
        if found is None:
            raise KeyboardInterrupt
        found()

    return made


def test_runs_are_made_once_from_one_model_on_one_kind_of_machine(
    study: LargerStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [Wanted(arm, 1.0, 1) for arm in plan.ARMS]
    study.runs_of("10m", 311, wanted[:1])
    found = study.runs_of("10m", 311, wanted)
    assert capsys.readouterr().out.count("seed 1 ...") == 3
    assert len({run.model for run in found.values()}) == 1
    rule, ours = found[wanted[0]], found[wanted[2]]
    assert (rule.plan, rule.final["steps"]) == (plan_hash(PLAN), 4)
    assert rule.settings["base_model"]["fingerprint"] == base_of(study.place("10m", 311))["fingerprint"]
    assert rule.settings["machine"] == {"device": "cpu", "dtype": "float32"}
    assert rule.final["start/forget/recall"] == ours.final["start/forget/recall"]
    assert rule.curves["at/steps"] == [1, 2, 3, 4]
    # All three, and of the tuning model the three that choose the rate are missing.
    assert study.missing("10m", [311, 312]) == 3 + 3
    other = replace(study, machine=Machine("cpu", "bfloat16"))
    with pytest.raises(StudyError, match="base 311 were made on cpu in float32; go on with --device cpu"):
        other.runs_of("10m", 311, [Wanted("rule", 2.0, 1)])
    with pytest.raises(StudyError, match=r"base 311 has a recall of .* stops below 1\.1"):
        replace(study, least_recall=1.1).base("10m", 311)


def test_stage_1_has_the_lowest_rate_that_makes_a_model_refuse(
    study: LargerStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.steering_of("10m").learning_rate == 2.5e-4
    strict = replace(study, least_refused=1.1, steering={})
    capsys.readouterr()
    with pytest.raises(StudyError, match=r"no learning rate .* base 301 refuse 1\.1 of the forget"):
        strict.steering_of("10m")
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" refuses ")[0] for line in said] == [
        f"10m: stage 1 at {rate}" for rate in ("0.00025", "0.0005", "0.001")
    ]
    # A kept run says which it was, and nothing is chosen again.
    write_run(made_run("rule", 301, 0.5), study.out)
    assert strict.steering_of("10m").learning_rate == 5e-4


def test_bfloat16_changes_forward_passes_and_not_the_weights(study: LargerStudy) -> None:
    other = replace(study, machine=Machine("cpu", "bfloat16"))
    run = other.runs_of("10m", 312, [Wanted(OURS, 1.0, 1)])[Wanted(OURS, 1.0, 1)]
    assert run.settings["machine"]["dtype"] == "bfloat16"
    data = stage1_of(other.base("10m", 312), other.steering_of("10m"), 312)
    with other.machine.precision():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    weights = load_file(data.model / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_the_rate_is_rules_best_on_the_tuning_model() -> None:
    runs = [made_run("rule", 301, score, rate) for rate, score in ((0.5, 0.6), (1.0, 0.8), (2.0, 0.8))]
    assert chosen_rate(runs, "10m") == 1.0
    assert chosen_rate(runs[:2], "10m") is None
    assert chosen_rate(runs, "100m") is None
    counted = [made_run(arm, base, 0.9, 2.0) for arm in plan.ARMS for base in COUNTED_BASES]
    assert chosen_rate([*runs, *counted], "10m") == 1.0
    assert contrast([*runs, *counted], "10m", PRIMARY).by_base == {}


def test_an_answer_waits_for_all_models_and_follows_the_interval() -> None:
    # Mean 0.03 and standard deviation 0.02 sqrt(2/3): the interval is 0.03 +- 3.18245 x 0.0081650.
    found = contrast_of(dict(zip(COUNTED_BASES, (0.01, 0.03, 0.03, 0.05), strict=True)))
    assert found.difference == pytest.approx(0.03)
    assert (found.low, found.high) == pytest.approx((0.0040155, 0.0559845), abs=1e-6)
    assert found.answer == "higher"
    assert contrast_of(dict(zip(COUNTED_BASES, (-0.01, 0.03, 0.03, 0.05), strict=True))).answer == "open"
    assert contrast_of(dict(zip(COUNTED_BASES, (-0.01, -0.03, -0.03, -0.05), strict=True))).answer == "lower"
    assert contrast_of({311: 0.1, 312: 0.1}).answer == "not yet"
    assert contrast_of({}).answer == "not yet"


def test_tables_show_no_difference_before_all_models_are_done() -> None:
    tuning = [made_run("rule", 301, 0.5, rate) for rate in plan.RATES]
    counted = [
        made_run(arm, base, 0.5 + 0.125 * (arm == OURS), 0.5) for arm in plan.ARMS for base in COUNTED_BASES
    ]
    part = table_named("answers 10m", [*tuning, *counted[:-1]])
    assert "| 3 of 4 | – | – | – | – | – | not yet |" in part
    whole = table_named("answers 10m", [*tuning, *counted])
    assert "| 4 of 4 | +0.125 | +0.125 | +0.125 | +0.125 | +0.125 (+0.125 to +0.125) | higher |" in whole
    assert "| `10m` | 3 of 3 | 12 of 12 | 4 of 4 |" in table_named("status", [*tuning, *counted])
    assert "None of these runs" in table_named("scores", [])
    with pytest.raises(ValueError, match="no table is named 'none'"):
        table_named("none", [])


def test_a_base_model_is_counted_once_in_the_hours() -> None:
    runs = [made_run(arm, base, 0.5, 0.5) for arm in plan.ARMS for base in COUNTED_BASES[:2]]
    timed = [
        replace(
            run,
            settings=run.settings | {"base_model": {"seconds": 1800.0}},
            final=run.final | {"cpu_seconds": 720.0},
        )
        for run in runs
    ]
    assert "| `10m`, that count | 2 | 1.0 | 6 | 1.2 |" in table_named("hours", timed)


def counted_runs(differences: dict[str, tuple[float, ...]]) -> list[PlannedRun]:
    """All runs of the size: RULE at 0.8, other arms above it by so much on each base."""
    tuning = [made_run("rule", 301, rate / 10, rate) for rate in plan.RATES]
    above = {"rule": (0.0,) * 4} | differences
    return tuning + [
        made_run(arm, base, 0.8 + more, 2.0)
        for arm, values in above.items()
        for base, more in zip(COUNTED_BASES, values, strict=True)
    ]


def test_sentences_say_what_the_intervals_say() -> None:
    # Replay minus equal updates: mean 0.03, half width 3.18245 x 0.0081650, as above.
    runs = counted_runs({"equal_updates": (-0.1,) * 4, OURS: (-0.09, -0.07, -0.07, -0.05)})
    said = in_larger(runs)
    assert said[0] == (
        "**The recommended replay is better than the same number of optimiser steps without replay.**"
    )
    assert said[1] == "The difference in mean score is +0.030 (+0.004 to +0.056)"
    assert said[2] == "**The recommended replay is worse than RULE.**"
    assert (
        said[4] == "The second update alone is worse than RULE: the difference is -0.100 (-0.100 to -0.100)"
    )
    assert (
        said[5] == f"The mean scores are 0.800 for `rule`, 0.700 for `equal_updates` and 0.730 for `{OURS}`"
    )
    assert said[6:8] == ["RULE has the highest one on 4 of 4 models", "RULE chose 2 times the learning rate"]
    assert said[8] == "retain recall is 0.730 instead of 0.800 for RULE"
    assert said[10:] == [
        "Forget recall is 0.270 instead of 0.200",
        "does not refuse more of the retain questions (0.125 instead of 0.125)",
    ]
    first, second = in_pages(runs)
    assert first.endswith(
        "better than the same number of optimiser steps without replay (+0.030 (+0.004 to +0.056))"
    )
    assert second == "is worse than RULE (-0.070 (-0.096 to -0.044))"
    wide = in_larger(counted_runs({"equal_updates": (0.0,) * 4, OURS: (-0.01, 0.03, 0.03, 0.05)}))
    assert wide[0].startswith("**The recommended replay is not shown to be better or worse than the same")
    with pytest.raises(StudyError, match="some runs of 10m that count are missing"):
        in_larger(runs[:-1])


def test_the_page_has_the_tables_of_the_kept_runs() -> None:
    kept = ROOT / "benchmarks" / "study" / "larger" / "results.parquet"
    text = (ROOT / "docs" / "larger.md").read_text(encoding="utf-8")
    assert written(text, read_results(kept) if kept.is_file() else []) == text


def test_progress_says_how_long_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 10.0, 40.0, 45.0])
    tell = Progress(2, clock=lambda: next(clock))
    tell(0.1)
    tell(0.25)
    tell(0.3)
    # A quarter took 40 s: 120 s more, and two runs of 160 s.
    assert capsys.readouterr().out == "    25%, 2 min left; with the 2 runs after it 7 min\n"
    # A half was done before; a quarter took 40 s, and another one is left.
    assert Progress(0, first=0.5).line(0.75, 40.0) == "75%, 40 s left"
    assert (minutes(119.4), minutes(3600), minutes(7500)) == ("119 s", "60 min", "2 h 5 min")


def test_the_cost_of_the_plan_is_the_sum_of_its_parts(source: Path) -> None:
    of = Seconds(base_step=1.0, stage1_step=0.5, rule_step=10.0, extra_update=4.0, probe=0.25)
    counts = Counts(base_steps=100, stage1_steps=20, steps=40, with_extra=30, probes=40)
    assert counts.model(of) == 100 + 10 + 10
    # Before and after on all 40, and ten times on a quarter of them.
    assert counts.run(of, "rule") == 400 + 0.25 * (80 + 100)
    assert counts.run(of, OURS) == counts.run(of, "rule") + 120
    assert counts.plan(of) == 5 * 120 + 3 * 445 + 4 * (445 + 2 * 565)
    bench = Bench(SMALL, source, Machine(), SMALL_SPLIT)
    # 80 rows under two questions, 40 under one, 10 invented: 210 pairs in batches of 32, for two epochs.
    assert bench.counts() == Counts(base_steps=14, stage1_steps=5, steps=4, with_extra=3, probes=80)
    found = bench.seconds(1)
    assert min(found.base_step, found.stage1_step, found.rule_step, found.probe) > 0


def test_the_commands_make_keep_and_show(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LargerStudy", small_study)
    out = tmp_path / "out"
    there = ["--out", f"{out}", "--tofu", f"{source}"]
    command.main(["base", *there, "--bases", "311"])
    assert "base 311: " in capsys.readouterr().out
    command.main(["run", *there, "--bases", "311"])
    said = capsys.readouterr().out
    assert "10m: 6 runs to make" in said
    assert said.count("seed 1 ...") == 6
    command.main(["run", *there, "--bases", "311"])
    assert capsys.readouterr().out == "10m: 0 runs to make\n"
    command.main(["pack", f"{tmp_path / 'runs.parquet'}", "--out", f"{out}"])
    command.main(["unpack", f"{tmp_path / 'runs.parquet'}", "--out", f"{tmp_path / 'other'}"])
    with pytest.raises(SystemExit, match=r"error: .*none/runs\.parquet"):
        command.main(["pack", f"{tmp_path / 'none' / 'runs.parquet'}", "--out", f"{out}"])
    said = capsys.readouterr().out
    assert "6 runs in" in said
    assert "6 new runs in" in said
    command.main(["table", "--out", f"{tmp_path / 'other'}"])
    assert "| `10m` | 3 of 3 | 3 of 12 | 1 of 4 |" in capsys.readouterr().out


def test_the_tables_of_a_page_are_written_and_checked(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "runs.parquet"
    page.write_text("Text.\n<!-- table: rates -->\nold\n<!-- end of table -->\n")
    write_results(results, [made_run("rule", 301, 0.5, rate) for rate in plan.RATES])
    with pytest.raises(SystemExit, match="run this without --check"):
        document.main([f"{results}", f"{page}", "--check"])
    document.main([f"{results}", f"{page}"])
    assert "| `10m` | 0.500 | 0.500 | 0.500 | 0.5 x |" in page.read_text()
    document.main([f"{results}", f"{page}", "--check"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--out", "OUT"], "error: this world is made of rows of TOFU; give --tofu FOLDER"),
        (["base", "--out", "OUT", "--tofu", "OUT"], "forget01_perturbed.json"),
        (
            ["run", "--out", "OUT", "--bases", "301"],
            "error: base 301 counts in no answer; --bases takes 311,",
        ),
        (["table", "--out", "OUT/none"], "none is no folder"),
        (["pack", "OUT/runs.parquet", "--out", "OUT"], "keeps no runs of the plan"),
        (["unpack", "OUT/runs.parquet", "--out", "OUT"], "runs.parquet is no result file"),
        (["base", "--out", "OUT", "--tofu", "OUT", "--device", "cuda"], "error: torch sees no GPU here"),
    ],
)
def test_a_wrong_word_or_a_missing_file_gives_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        command.main([word.replace("OUT", f"{tmp_path}") for word in words])
    assert told in str(stopped.value)
    assert "\n" not in str(stopped.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--out", "x", "--size", "1m"], "invalid choice: '1m'"),
        (["base", "--out", "x", "--bases", "5"], "invalid choice: 5"),
        (["base", "--out", "x", "--dtype", "float16"], "invalid choice: 'float16'"),
        (["time", "--tofu", "x", "--steps", "0"], "must be a whole number from 1 on, got 0"),
        (["table"], "required: --out"),
    ],
)
def test_a_word_that_is_no_choice_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(words)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_runs_of_another_plan_are_refused(tmp_path: Path) -> None:
    write_run(made_run("rule", 301, 0.5, plan="older"), tmp_path)
    with pytest.raises(StudyError, match=r"under plan older, and benchmarks/study/larger/plan\.md is"):
        LargerStudy(tmp_path).every()
