"""The commands that the run scripts give, for each arm and number of devices, by the checks of the commands.

A `python` that only notes its arguments stands where the scripts look for one. What examples/method_files.py
answers is real.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import rl_row, sft_row, write_rows, write_sft_rows
from recipe.rerule.preflight import checks
from recipe.rerule.unlearning import presets
from tests.refused.configurations import put_model as write_model

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ("rwku", "muse_books", "tofu")
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (8, 2), (8, 4)]
"""Devices a node, and nodes."""
STAGE1 = {1: (1, 2), 2: (2, 2), 4: (4, 2), 8: (8, 1), 16: (8, 1)}
"""Devices a node: ranks of stage 1, and its micro-batch; by hand."""
UNLEARN = {
    "rwku": (8, 3, 1e-6),
    "muse_books": (32, 10, 1e-5),
    "muse_news": (32, 10, 1e-5),
    "tofu": (8, 10, 1e-5),
}
"""Rows a step, epochs and learning rate of a method; by hand."""
LOG_PROBS = {"rwku": 16, "muse_books": 16, "tofu": 8}
"""The paper's micro-batches of log-probs, which 32 devices with 8 rows each cannot have."""
TARGET = "10_Ada,_Duke_of_Quill"
"""The one target of RWKU, with a comma as one of the published targets has."""
READ = {
    "ga": ["forget_gold"],
    "npo_gdr": ["forget_gold", "retain"],
    "dpo_rt": ["forget_gold", "alternate", "retain"],
    "po": ["alternate", "retain"],
    "mismatch": ["forget_gold", "retain"],
    "llmu": ["forget_gold", "retain"],
    "flat": ["forget_gold", "alternate"],
    "whp": ["forget_gold"],
    "rejection_steering": ["alternate"],
    "retain_model": ["retain"],
}
"""Files that a method reads; by hand."""
STAND_IN = f"""#!/usr/bin/env bash
[ "$1" != examples/method_files.py ] || exec "{sys.executable}" "$@"
printf '%s\\t' "$@" >> "$CALLS"
echo >> "$CALLS"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, the rows of all stages, and a folder with the stand-in for python."""
    folder = tmp_path_factory.mktemp("made")
    write_model(folder / "model")
    (folder / "data").mkdir()
    (folder / "data" / "manifest.json").write_text("{}")
    write_rows(folder / "data" / "train.parquet", [_row(index, "Where") for index in range(96)])
    write_rows(folder / "data" / "val.parquet", [_row(index, "When") for index in range(8)])
    for name in ("sft", "forget_gold", "retain", "alternate"):
        rows = [_sft_row(index, f"Answer {index} of {name}.") for index in range(40)]
        write_sft_rows(folder / "data" / f"{name}.parquet", rows)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(STAND_IN)
    (folder / "bin" / "python").chmod(0o755)
    return folder


def _row(index: int, word: str) -> dict[str, Any]:
    side, keyword = ("forget", "Ada Quill") if index % 2 else ("retain", "")
    info = {"index": index, "mode": "qa", "subject": "Ada Quill", "split": "train"}
    return rl_row(
        data_source="rerule/test",
        prompt=f"{word} {index}?",
        side=side,
        golds=["Tarn"],
        keyword=keyword,
        extra_info=info | {"section": side, "family": "question"},
    )


def _sft_row(index: int, answer: str) -> dict[str, Any]:
    info = {"index": index, "mode": "qa", "subject": "Ada Quill"}
    return sft_row(prompt=f"Where {index}?", answer=answer, extra_info=info)


def script(benchmark: str, out: Path, made: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{made / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CALLS": str(out / "calls"),
        "OUT": str(out),
    }
    return subprocess.run(
        ["bash", f"examples/run_{benchmark}.sh"],
        cwd=ROOT,
        env={**environment, "MODEL": str(made / "model"), "DATA": "unused", **variables},
        capture_output=True,
        text=True,
    )


def put_data(benchmark: str, out: Path, data: Path) -> None:
    """Put the rows where the script looks for those that are made already."""
    out.mkdir()
    if benchmark != "rwku":
        return (out / "data").symlink_to(data)
    (out / "data").mkdir()  # with a folder for each target
    (out / "data" / "manifest.json").write_text("{}")
    (out / "data" / TARGET).symlink_to(data)


def called(out: Path) -> list[list[str]]:
    """Module and arguments of each command that the scripts would have run, in order."""
    lines = [line.split("\t")[:-1] for line in (out / "calls").read_text().splitlines()]
    return [line[1:] for line in lines if line[0] == "-m"]


def calls(benchmark: str, out: Path, made: Path, **variables: str) -> dict[str, list[str]]:
    """Module to arguments of its first command."""
    put_data(benchmark, out, made / "data")
    done = script(benchmark, out, made, **variables)
    assert done.returncode == 0, done.stderr
    return {module: arguments for module, *arguments in reversed(called(out))}


@functools.cache
def _composed(module: str, name: str, *groups: str) -> DictConfig:
    with initialize_config_module(module, version_base=None):
        return compose(name, list(groups))


def config(module: str, name: str, overrides: list[str]) -> DictConfig:
    """As Hydra composes it, but once an experiment: that takes a second, and sizes are resolved when read."""
    groups = [override for override in overrides if "." not in override.split("=")[0]]
    made = OmegaConf.create(OmegaConf.to_container(_composed(module, name, *groups)))
    assert isinstance(made, DictConfig)
    others = [override for override in overrides if override not in groups]
    for override in OverridesParser.create().parse_overrides(others):
        OmegaConf.update(made, override.key_or_group, override.value(), force_add=override.is_add())
    OmegaConf.resolve(made)
    return made


def unlearning(overrides: list[str]) -> DictConfig:
    return config("recipe.rerule.config.unlearn", "unlearn_trainer", overrides)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0]}x{layout[1]}")
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_a_script_passes_is_accepted(
    benchmark: str, layout: tuple[int, int], made: Path, tmp_path: Path
) -> None:
    gpus, nodes = layout
    out = tmp_path / "out"
    found = calls(benchmark, out, made, N_GPUS=str(gpus), NNODES=str(nodes))
    stage1 = config("recipe.rerule.config.stage1", "sft_trainer", found["recipe.rerule.sft"])
    checks.require(checks.findings(checks.stage1, stage1))
    assert (stage1.trainer.n_gpus_per_node, stage1.data.micro_batch_size_per_gpu) == STAGE1[gpus]
    stage2 = config("recipe.rerule.config", "rerule_trainer", found["recipe.rerule.main"])
    model = Path(stage2.actor_rollout_ref.model.path)
    model.parent.mkdir()
    model.symlink_to(made / "model")
    checks.require(checks.findings(checks.stage2, stage2))
    assert (stage2.trainer.n_gpus_per_node, stage2.trainer.nnodes) == layout
    expected = min(LOG_PROBS[benchmark], 256 // (gpus * nodes))
    assert stage2.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == expected
    assert stage2.actor_rollout_ref.rollout.max_model_len == (768 if benchmark == "tofu" else 1536)


def test_a_try_has_one_device_whatever_is_said(made: Path, tmp_path: Path) -> None:
    found = calls("tofu", tmp_path / "out", made, SMOKE="1", N_GPUS="3")
    stage1 = config("recipe.rerule.config.stage1", "sft_trainer", found["recipe.rerule.sft"])
    assert (stage1.trainer.n_gpus_per_node, stage1.data.micro_batch_size_per_gpu) == (1, 2)
    stage2 = config("recipe.rerule.config", "rerule_trainer", found["recipe.rerule.main"])
    actor, rollout = stage2.actor_rollout_ref.actor, stage2.actor_rollout_ref.rollout
    assert (actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu) == (4, 8)
    assert rollout.max_model_len == 512


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0]}x{layout[1]}")
@pytest.mark.parametrize("benchmark", [*BENCHMARKS, "muse_news"])
def test_what_a_method_is_passed_is_accepted(
    benchmark: str, layout: tuple[int, int], made: Path, tmp_path: Path
) -> None:
    gpus, nodes = layout
    arm = {"N_GPUS": str(gpus), "NNODES": str(nodes), "ARM": "dpo_gdr"}
    found = calls(benchmark, tmp_path / "out", made, **arm)
    assert "recipe.rerule.sft" not in found
    run = unlearning(found["recipe.rerule.unlearn"])
    checks.require(checks.findings(checks.unlearn, run))
    batch, epochs, rate = UNLEARN[benchmark]
    assert (run.data.train_batch_size, run.trainer.total_epochs, run.optim.lr) == (batch, epochs, rate)
    ranks, micro_batch = STAGE1[gpus]
    assert (run.trainer.n_gpus_per_node, run.trainer.nnodes) == (ranks, 1)
    assert run.data.micro_batch_size_per_gpu == (2 if batch == 32 else micro_batch)
    assert (run.method.name, run.model.path) == ("dpo_gdr", str(made / "model"))


def test_every_method_is_an_arm_with_the_files_that_it_reads(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_data("tofu", out, made / "data")
    done = script("tofu", out, made, ARMS="\n".join(presets.names()))
    assert done.returncode == 0, done.stderr
    runs = {
        arguments[0]: arguments for module, *arguments in called(out) if module == "recipe.rerule.unlearn"
    }
    assert list(runs) == [f"method={name}" for name in presets.names()]
    assert len(runs) >= 22
    for method, files in READ.items():
        given = [part for part in runs[f"method={method}"] if part.startswith("data.")]
        assert [Path(part.rpartition("=")[2].strip("'")).stem for part in given] == files
        assert f"trainer.default_local_dir='{out / method}'" in runs[f"method={method}"]


@pytest.mark.parametrize("smoke", ["0", "1"])
def test_whp_has_a_model_reinforced_by_the_answers_to_forget(smoke: str, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = calls("tofu", out, made, ARM="whp", SMOKE=smoke)
    assert [run[0] for run in called(out)][-4:-2] == ["recipe.rerule.sft", "recipe.rerule.unlearn"]
    first = config("recipe.rerule.config.stage1", "sft_trainer", found["recipe.rerule.sft"])
    if smoke == "1":
        Path(first.model.path).symlink_to(made / "model")
    checks.require(checks.findings(checks.stage1, first))
    assert first.data.train_files == f"{out / 'data'}/forget_gold.parquet"
    assert first.trainer.default_local_dir == str(out / "reinforced")
    run = unlearning(found["recipe.rerule.unlearn"])
    assert run.model.path == first.model.path
    (out / "reinforced").mkdir()
    Path(run.reinforced.path).symlink_to(made / "model")
    checks.require(checks.findings(checks.unlearn, run))
    assert run.reinforced.path == str(out / "reinforced" / "model")


def test_a_try_of_a_method(made: Path, tmp_path: Path) -> None:
    found = calls("rwku", tmp_path / "out", made, SMOKE="1", ARM="npo_gdr", N_GPUS="3")
    run = unlearning(found["recipe.rerule.unlearn"])
    Path(run.model.path).symlink_to(made / "model")
    checks.require(checks.findings(checks.unlearn, run))
    assert (run.trainer.n_gpus_per_node, run.trainer.total_training_steps, run.platform.name) == (1, 3, "cpu")
    assert (run.data.train_batch_size, run.data.micro_batch_size_per_gpu) == (4, 2)


def test_several_arms_have_one_stage_1_one_evaluation_and_one_report(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_data("tofu", out, made / "data")
    done = script("tofu", out, made, ARMS="rule rerule npo_gdr recommended random po")
    assert done.returncode == 0, done.stderr
    runs = called(out)
    stage2 = ["recipe.rerule.main"]
    assert [run[0] for run in runs] == [
        "recipe.rerule.sft",
        *stage2 * 2,
        "recipe.rerule.unlearn",
        *stage2 * 2,
        "recipe.rerule.unlearn",
        "recipe.rerule.evaluate",
        "recipe.rerule.report",
    ]
    experiments = [(run[1], run[-1]) for run in runs if run[0] == "recipe.rerule.main"]
    resume = "trainer.resume_mode=auto"
    assert experiments == [
        ("experiment=paper/tofu", "replay.enable=false"),
        ("experiment=paper/tofu", resume),
        ("experiment=tofu", resume),
        ("experiment=paper/tofu", "replay.admission=random"),
    ]
    asked, name = runs[-2], "rule-rerule-npo_gdr-recommended-random-po"
    assert [asked[place + 1] for place, part in enumerate(asked) if part == "--model"] == [
        f"base={made / 'model'}",
        f"stage1={out}/stage1/model",
        f"rule={out}/rule",
        f"rerule={out}/rerule",
        f"npo_gdr={out}/npo_gdr/model",
        f"recommended={out}/recommended",
        f"random={out}/random",
        f"po={out}/po/model",
    ]
    assert asked[asked.index("--most-compared") + 1] == "8"
    assert asked[asked.index("--out") + 1] == f"{out}/evaluation_{name}"
    page = runs[-1]
    shown = [f"{arm}={out}/{arm}" for arm in ("rule", "rerule", "recommended", "random")]
    assert [page[place + 1] for place, part in enumerate(page) if part == "--run"] == shown
    assert page[-1] == f"{out}/report_{name}.html"


def test_what_is_built_is_not_built_again(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_data("tofu", out, made / "data")
    for name in ("stage1", "npo_gdr"):
        (out / name / "model").mkdir(parents=True)
        (out / name / "model" / "config.json").write_text("{}")
    for name, last in (("rule", "stage 2 finished: x"), ("rerule", "killed")):
        (out / name).mkdir()
        (out / name / "latest_checkpointed_iteration.txt").write_text("3")
        (out / f"{name}.log").write_text("stage 2 finished: an earlier run\n")
        (out / f"{name}.1.log").write_text(f"step 3/3\n{last}\n")
    done = script("tofu", out, made, ARMS="rule rerule npo_gdr")
    assert done.returncode == 0, done.stderr
    assert [run[0].rpartition(".")[2] for run in called(out)] == ["main", "evaluate", "report"]
    assert "experiment=paper/tofu" in called(out)[0]
    assert "replay.enable=false" not in called(out)[0]
    (out / "report_rule-rerule-npo_gdr.html").write_text("")
    (out / "calls").write_text("")
    done = script("tofu", out, made, ARMS=" rule  rerule npo_gdr ")
    assert (done.returncode, called(out)) == (0, []), done.stderr


def test_one_name_in_arms_is_the_arm_alone(made: Path, tmp_path: Path) -> None:
    found = []
    for variables in ({"ARM": "rule"}, {"ARMS": "rule"}, {}, {"ARM": "rerule"}):
        out = tmp_path / str(len(found))
        put_data("rwku", out, made / "data")
        assert script("rwku", out, made, **variables).returncode == 0
        found.append((out / "calls").read_text().replace(str(out), "OUT"))
    assert found[0] == found[1]
    assert found[2] == found[3]
    for arm, lines in (("rule", found[0]), ("rerule", found[2])):
        pages = [line.split("\t")[-2] for line in lines.splitlines() if "recipe.rerule.report" in line]
        assert pages == [f"OUT/{TARGET}/report_{arm}.html", "--overwrite"]
        assert f"--results\tOUT/{TARGET}/evaluation_{arm}\t--out\tOUT/report_{arm}.html" in lines


def test_options_of_the_rows_come_last(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    options = {"SMOKE": "1", "PREPARE_OPTIONS": "--gold mine.csv --limit 8"}
    script("rwku", out, made, **options)
    assert called(out)[0][-6:] == ["--val-rows", "8", "--gold", "mine.csv", "--limit", "8"]


def test_options_of_a_stage_are_its_own_and_count(made: Path, tmp_path: Path) -> None:
    options = {
        "STAGE1": "optim.lr=1e-7",
        "STAGE2": "data.sides=balanced replay.seed=3",
        "UNLEARN": "trainer.seed=5",
    }
    given = {f"{stage}_OPTIONS": words for stage, words in options.items()}
    found = calls("tofu", tmp_path / "out", made, ARMS="random npo", **given)
    modules = {
        "STAGE1": "recipe.rerule.sft",
        "STAGE2": "recipe.rerule.main",
        "UNLEARN": "recipe.rerule.unlearn",
    }
    for stage, module in modules.items():
        for other, words in options.items():
            assert (set(words.split()) <= set(found[module])) == (stage == other)


@pytest.mark.parametrize("benchmark", ["rwku", "tofu"])
def test_a_method_without_its_file_ends_the_script_before_any_training(
    benchmark: str, made: Path, tmp_path: Path
) -> None:
    rows, out = tmp_path / "rows", tmp_path / "out"
    rows.mkdir()
    for path in (made / "data").iterdir():
        if path.stem not in ("forget_gold", "manifest"):
            (rows / path.name).symlink_to(path)
    said = "forget_gold.parquet is not written: all 40 answers are refusals; give the right ones with --gold"
    (rows / "manifest.json").write_text(json.dumps({"classical": {"left_out": [said]}}))
    put_data(benchmark, out, rows)
    before = sorted(out.rglob("*"))
    done = script(benchmark, out, made, ARMS="rule po npo_gdr")
    file = out / "data" / (TARGET if benchmark == "rwku" else "") / "forget_gold.parquet"
    assert (done.returncode, sorted(out.rglob("*"))) == (2, before)
    assert done.stderr == (
        f"error: the method npo_gdr needs {file}, which is not there: all 40 answers are refusals; give the "
        'right ones with --gold (PREPARE_OPTIONS="--gold FILE" and another OUT)\n'
    )
    (rows / "manifest.json").write_text("{}")
    done = script(benchmark, out, made, ARM="ga")
    assert done.stderr == (
        f"error: the method ga needs {file}, which is not there: give another OUT, so that data_prep makes "
        "the rows again\n"
    )


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"ARM": "ga", "ARMS": "npo"}, "ARM is ga and ARMS is npo; give one of them"),
        (
            {"ARMS": "rule best"},
            "ARMS names best; choose rule, rerule, random or recommended, or a method of",
        ),
        ({"ARMS": "rule ../method/ga"}, "ARMS names ../method/ga; choose rule, rerule"),
        ({"ARMS": "*"}, "ARMS names *; choose rule, rerule"),
        ({"ARM": "rule rerule"}, "ARM is rule rerule; choose rule, rerule, random or recommended, or a"),
        ({"ARMS": "rule ga rule"}, "ARMS names rule twice; name each arm once"),
        ({"ARMS": " "}, "ARMS names no arm; give names such as"),
    ],
)
def test_names_that_are_no_arms_end_the_script_first(
    variables: dict[str, str], line: str, made: Path, tmp_path: Path
) -> None:
    done = script("muse_books", tmp_path / "out", made, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"N_GPUS": "3"},
            "N_GPUS x NNODES is 3; give 1, 2, 4, 8, 16 or 32 devices: others cannot share the 256",
        ),
        ({"N_GPUS": "8", "NNODES": "8"}, "N_GPUS x NNODES is 64; give 1, 2, 4, 8, 16 or 32 devices"),
        ({"N_GPUS": "0"}, "N_GPUS is 0; give a whole number above 0"),
        ({"N_GPUS": "four"}, "N_GPUS is four; give a whole number above 0"),
        ({"NNODES": "08"}, "NNODES is 08; give a whole number above 0"),
    ],
)
def test_devices_that_cannot_share_a_step_end_the_script_first(
    variables: dict[str, str], line: str, made: Path, tmp_path: Path
) -> None:
    done = script("tofu", tmp_path / "out", made, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
