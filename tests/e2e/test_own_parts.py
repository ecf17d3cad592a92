"""Raw rows, stop strings and replay rules of a user's own in stage 2, on the real stack."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data_prep.contract import read_rows, write_rows
from recipe.rerule.replay import RolloutGroup
from recipe.rerule.replay.state import read_record
from recipe.rerule.runs.history import read_metrics
from recipe.rerule.schema import AGENT_LOOP
from tests.e2e.run_checks import assert_same_model, stored_groups
from tests.e2e.stack import Command, stage2_arguments
from tests.replay import own_rules

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(900)]

SAVED, STEPS, PROMPTS = 2, 4, 3
STOP = "r"  # which the micro world's model writes often, unlike newlines


def raw_world(world: Path, folder: Path) -> PreTrainedTokenizerFast:
    """Write the world with raw rows, and its model with the tokenizer of a base model; returns that."""
    shutil.copytree(world / "model", folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = None
    (folder / "model" / "chat_template.jinja").unlink(missing_ok=True)
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    tokenizer.save_pretrained(folder / "model")
    for name in ("train", "val"):
        rows = read_rows(world / f"{name}.parquet")
        for row in rows:
            row["extra_info"]["raw"] = True
            row["prompt"][0]["content"] = f"Question: {row['prompt'][0]['content']}\nAnswer: "
        write_rows(folder / f"{name}.parquet", rows)
    return tokenizer


def test_raw_rows_stop_strings_and_own_rules(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is resumed after two steps, and its admission rule goes on with its state.

    An odd number of prompts a step, so that what is stored depends on the steps before. The learning rate is
    0, so that stored and current log-probs come from the same model and every weight is 1.
    """
    tokenizer, run_folder = raw_world(micro_world, tmp_path), tmp_path / "run"
    shutil.copy(own_rules.__file__, tmp_path / "rules_of_mine.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    more = (
        f"data.train_batch_size={PROMPTS} actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS} "
        f"actor_rollout_ref.actor.optim.lr=0 data.stop=['{STOP}'] trainer.resume_mode=auto "
        f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT_LOOP} "
        "replay.admission=rules_of_mine:EveryOther replay.min_groups=1 replay.groups_per_update=2 "
        "replay.warmup_steps=0"
    )
    arguments = stage2_arguments(tmp_path, run_folder, *more.split())
    for steps in (SAVED, STEPS):
        command("-m", "recipe.rerule.main", *arguments, f"trainer.total_training_steps={steps}").finish()
        assert read_record(run_folder / f"global_step_{steps}" / "replay")["rules"] == {
            "admission": {"class": "rules_of_mine:EveryOther", "state": {"offered": PROMPTS * steps}}
        }
    lines = (run_folder / "records" / "replay.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["stored"]) for line in lines] == [2, 1, 2, 1]

    metrics = read_metrics(run_folder)
    assert sorted(metrics) == list(range(1, STEPS + 1))
    # Log-probs belong to the tokens they came with, the one with the stop string included.
    assert_same_model(metrics)
    replayed = [data for data in metrics.values() if data["replay/updates"]]
    assert len(replayed) >= STEPS - 1
    for data in replayed:
        assert abs(data["replay/ratio_max"] - 1) < 1e-5
        assert abs(data["replay/ratio_mean"] - 1) < 1e-5
        assert data["replay/effective_sample_size"] > 1 - 1e-5

    groups = stored_groups(run_folder, STEPS)
    rows = read_rows(tmp_path / "train.parquet")
    texts = {row["extra_info"]["index"]: row["prompt"][0]["content"] for row in rows}
    for (index, _), group in groups.items():
        assert group.prompt_ids.tolist() == tokenizer(texts[index]).input_ids
        assert group.prompt_ids[0] == tokenizer.bos_token_id
    assert_all_end_at_the_stop(groups.values(), tokenizer)
    arguments.append(f"trainer.total_training_steps={STEPS}")
    assert_a_finished_run_does_nothing_more(command, run_folder, arguments)


def assert_all_end_at_the_stop(groups: Iterable[RolloutGroup], tokenizer: PreTrainedTokenizerFast) -> None:
    """The token that completes the stop string is the last one of its response."""

    def text(ids: list[int]) -> str:
        # As the rollout engine reads it: `<|user|>` holds the stop string, but special tokens are no text.
        return tokenizer.decode(ids, skip_special_tokens=True)

    rows = [row.tolist() for group in groups for row in group.response_ids.split(group.lengths.tolist())]
    stopped = [row for row in rows if STOP in text(row)]
    assert len(stopped) > len(rows) / 2
    assert all(STOP not in text(row[:-1]) for row in stopped)


def assert_a_finished_run_does_nothing_more(
    command: Callable[..., Command], run_folder: Path, arguments: list[str]
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in run_folder.rglob("*"))
    output = command("-m", "recipe.rerule.main", *arguments).finish()
    assert "already holds the run's last step" in output
    assert sorted((path, path.stat().st_mtime_ns) for path in run_folder.rglob("*")) == before
