"""What a run keeps beside its checkpoints."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from recipe.rerule import records
from recipe.rerule.replay import RolloutGroup
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level

NAMES = {4: "Ada", 9: "Ben"}


def group(index: int, rewards: list[float]) -> RolloutGroup:
    n = len(rewards)
    return RolloutGroup(
        prompt_index=index,
        side="forget",
        mode="qa",
        step=1,
        prompt_ids=torch.tensor([1], dtype=torch.int32),
        response_ids=torch.ones(n, dtype=torch.int32),
        lengths=torch.ones(n, dtype=torch.int32),
        response_mask=torch.ones(n, dtype=torch.bool),
        old_log_probs=torch.zeros(n),
        advantages=torch.zeros(n),
        rewards=torch.tensor(rewards),
    )


def test_a_start_keeps_the_configuration_and_a_resumed_one_the_earlier_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "")
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path / "run")}})
    folder = tmp_path / "run" / "records"
    for name in ("metrics.jsonl", "metrics.1.jsonl", "metrics.2.jsonl"):
        records.start(config)
        assert os.environ["VERL_FILE_LOGGER_PATH"] == str(folder / name)
        Path(os.environ["VERL_FILE_LOGGER_PATH"]).write_text(name)
    assert [path.read_text() for path in sorted(folder.glob("*"))] == sorted(
        ["metrics.jsonl", "metrics.1.jsonl", "metrics.2.jsonl"]
    )
    assert OmegaConf.load(tmp_path / "run" / "config.yaml") == config


def test_prompt_rewards_are_appended_a_line_a_step(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    records.append_prompts(str(tmp_path), 1, [group(4, [0.5, 1.0]), group(9, [0.0, 0.0])], NAMES)
    records.append_prompts(str(tmp_path), 2, [], {})
    lines = [json.loads(line) for line in (tmp_path / "records" / "prompts.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "step": 1,
            "prompts": [
                {
                    "index": 4,
                    "type": "forget",
                    "mode": "qa",
                    "subject": "Ada",
                    "rewards": [0.5, 1.0],
                    "prompt_tokens": 1,
                    "response_tokens": [1, 1],
                },
                {
                    "index": 9,
                    "type": "forget",
                    "mode": "qa",
                    "subject": "Ben",
                    "rewards": [0.0, 0.0],
                    "prompt_tokens": 1,
                    "response_tokens": [1, 1],
                },
            ],
        },
        {"step": 2, "prompts": []},
    ]


def test_responses_are_written_as_text_and_written_anew(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    texts = ["I don't know.", "Bä"]
    rows = [torch.tensor(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
    rows[1] = torch.cat([rows[1], torch.tensor([tokenizer.eos_token_id])])
    answered = replace(
        group(4, [0.5, 1.0]),
        response_ids=torch.cat(rows).int(),
        lengths=torch.tensor([len(row) for row in rows], dtype=torch.int32),
        **{name: torch.zeros(sum(map(len, rows))) for name in ("old_log_probs", "advantages")},
        response_mask=torch.ones(sum(map(len, rows)), dtype=torch.bool),
    )
    for reward in ([0.0, 0.0], [0.5, 1.0]):
        again = replace(answered, rewards=torch.tensor(reward))
        records.write_rollouts(str(tmp_path), 3, [again], {4: "Who is Ada?"}, tokenizer)
    lines = (tmp_path / "records" / "rollouts" / "3.jsonl").read_text(encoding="utf-8").splitlines()
    common = {"index": 4, "step": 3, "side": "forget", "mode": "qa", "prompt": "Who is Ada?"}
    assert [json.loads(line) for line in lines] == [
        common | {"response": text, "response_ids": row.tolist(), "reward": reward}
        for text, row, reward in zip(texts, rows, [0.5, 1.0], strict=True)
    ]
