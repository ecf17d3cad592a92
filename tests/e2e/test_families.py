"""Each family of models through stage 1, stage 2 with replay, and evaluation on the real stack.

RERULE_FAMILIES=FILE keeps what each test found, for the table of docs/running.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.contract import Row, read_rows, write_rows, write_sft_rows
from data_prep.world.splits import make_world
from recipe.rerule.evaluation import tidy
from recipe.rerule.replay.state import read_groups, read_record
from recipe.rerule.runs.history import read_metrics
from tests.e2e.stack import LIMIT_SECONDS, Command, stage2_arguments
from tests.families import results
from tests.families.made import FAMILIES, Family, save
from tests.made_worlds import MICRO

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1800)]

STEPS = 3
NEW_TOKENS = 8
PROBES = 12
MOST_DIFFERENCE = 1e-6  # mean over a step's tokens of |p of the engine - p of the trainer|; p is about 0.003


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a micro world, and texts.json to train tokenizers on."""
    world, folder = make_world(MICRO), tmp_path_factory.mktemp("rows")
    for name, made in (("train", world.train), ("val", world.val), ("probes", world.probes[:PROBES])):
        write_rows(folder / f"{name}.parquet", made)
    write_sft_rows(folder / "sft.parquet", world.sft)
    (folder / "texts.json").write_text(json.dumps([text for pair in world.base_pairs for text in pair]))
    return folder


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_a_family_goes_through_both_stages_and_the_evaluation(
    family: Family, command: Callable[..., Command], rows: Path, tmp_path: Path
) -> None:
    kept = os.environ.get("RERULE_FAMILIES")
    if kept:
        results.put(Path(kept), family.name, None)
    started = time.monotonic()
    made = save(family, tmp_path / "made", json.loads((rows / "texts.json").read_text()))
    stage1, stage2 = tmp_path / "stage1", tmp_path / "run"
    finish(command("-m", "recipe.rerule.sft", *stage1_arguments(family, made, rows, stage1)))
    assert_changed(made, stage1 / "model")
    steered = time.monotonic()
    finish(command("-m", "recipe.rerule.main", *arguments(family, stage1 / "model", rows, stage2)))
    metrics = read_metrics(stage2)
    unlearned = stage2 / f"global_step_{STEPS}" / "actor" / "huggingface"
    difference = assert_sampling_follows_training(metrics)
    assert_prompts(stage2, family, made, read_rows(rows / "train.parquet"))
    assert_changed(stage1 / "model", unlearned)
    trained = time.monotonic()
    evaluate(family, command, rows, stage2, tmp_path / "evaluation")
    assert_answers(tmp_path / "evaluation", family, unlearned, rows)
    seconds = {
        "stage1": steered - started,
        "stage2": trained - steered,
        "evaluation": time.monotonic() - trained,
    }
    if kept:
        found = {"probs_diff": difference, "seconds": {name: round(value) for name, value in seconds.items()}}
        results.put(Path(kept), family.name, found)


def template_overrides(family: Family) -> list[str]:
    return [f"+data.apply_chat_template_kwargs.{name}={value}" for name, value in family.arguments.items()]


def stage1_arguments(family: Family, model: Path, rows: Path, folder: Path) -> list[str]:
    return [
        "experiment=tiny",
        f"model.path={model}",
        f"data.train_files={rows / 'sft.parquet'}",
        "data.max_length=192",
        f"trainer.default_local_dir={folder}",
        "trainer.logger=[file]",
        *template_overrides(family),
    ]


def arguments(family: Family, model: Path, rows: Path, folder: Path) -> list[str]:
    """Of stage 2: replay from the second step on, so that the third samples from replayed weights."""
    return stage2_arguments(
        rows,
        folder,
        f"actor_rollout_ref.model.path={model}",
        "reward.custom_reward_function.path=tests/e2e/parity_reward.py",
        "data.max_prompt_length=160",
        "data.max_response_length=16",
        f"trainer.total_training_steps={STEPS}",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "replay.min_groups=4",
        *template_overrides(family),
    )


def finish(started: Command) -> None:
    assert started.wait(2 * LIMIT_SECONDS) == 0, started.output[-3000:]


def assert_changed(before: Path, after: Path) -> None:
    """Every tensor of a model has other values, and there are the same ones."""
    import torch
    from transformers import AutoModelForCausalLM

    old, new = (
        dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
        for folder in (before, after)
    )
    assert old.keys() == new.keys()
    assert [name for name in old if torch.equal(old[name], new[name])] == []


def assert_sampling_follows_training(metrics: dict[int, dict[str, float]]) -> float:
    """Engine and trainer agree on what was sampled, after replay as well; the greatest mean difference."""
    assert sorted(metrics) == list(range(1, STEPS + 1))
    assert [metrics[step]["replay/updates"] for step in sorted(metrics)] == [0, 1, 1]
    for step in (2, 3):
        assert metrics[step]["replay/drawn_groups"] == 4
        assert metrics[step]["replay/drawn_zero_signal"] < 4
        assert metrics[step]["replay/grad_norm"] > 0
    difference = max(data["training/rollout_probs_diff_mean"] for data in metrics.values())
    assert difference < MOST_DIFFERENCE
    assert min(data["training/rollout_actor_probs_pearson_corr"] for data in metrics.values()) > 0.9999
    return difference


def assert_prompts(run: Path, family: Family, model: Path, rows: list[Row]) -> None:
    """What was sampled from is the chat template's text, tokenised without a second BOS."""
    tokenizer = load(model)
    prompts = {row["extra_info"]["index"]: row["prompt"] for row in rows}
    folder = run / f"global_step_{STEPS}" / "replay"
    groups = [stored.group() for stored in read_groups(folder, read_record(folder))]
    assert groups
    for group in groups:
        assert group.prompt_ids.tolist() == asked(tokenizer, prompts[group.prompt_index], family)


def load(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def asked(tokenizer: Any, messages: list[dict[str, str]], family: Family) -> list[int]:
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **family.arguments
    )
    return tokenizer(text, add_special_tokens=False).input_ids


def evaluate(family: Family, command: Callable[..., Command], rows: Path, run: Path, out: Path) -> None:
    template = [
        part for name, value in family.arguments.items() for part in ("--template", f"{name}={value}")
    ]
    finish(
        command(
            *("-m", "recipe.rerule.evaluate", "model", "--platform", "cpu", "--max-tokens", NEW_TOKENS),
            *("--probes", rows / "probes.parquet", "--model", f"unlearned={run}", *template, "--out", out),
        )
    )


def assert_answers(evaluation: Path, family: Family, model: Path, rows: Path) -> None:
    """The answers are those of transformers with its plain attention, to prompts of the same tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    rows_of = tidy.read(evaluation).query("model == 'unlearned'")
    responses = {row.probe: whole(row.response) for row in rows_of.itertuples()}
    assert json.loads((evaluation / "results.json").read_text()).keys() == {"unlearned"}
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    tokenizer = load(model)
    found = {}
    for row in read_rows(rows / "probes.parquet"):
        ids = torch.tensor([asked(tokenizer, row["prompt"], family)])
        mask = torch.ones_like(ids)
        out = reference.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS)
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        found[row["extra_info"]["index"]] = whole(text)
    assert responses == found
    assert len(set(found.values())) > 1


def whole(text: str) -> str:
    """Without bytes that are no character yet, which vLLM holds back and transformers marks."""
    return text.replace("\N{REPLACEMENT CHARACTER}", "")
