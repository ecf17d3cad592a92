"""LoRA from stage 1 to the report on the real stack, and its adapters in peft and vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import read_rows
from recipe.rerule.evaluation import tidy
from recipe.rerule.replay import Replay, ReplayConfig, save
from recipe.rerule.runs import checkpoints, model_checks
from recipe.rerule.runs.history import read_metrics
from tests.e2e.run_checks import assert_same_model
from tests.e2e.stack import ROOT, Command, stage2_arguments
from tests.replay.groups import make_group

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(900)]

RANK, ALPHA = 4, 8
SAVED, STEPS = 3, 5
Tensors = dict[str, torch.Tensor]


def lora(section: str) -> list[str]:
    return [f"{section}.lora_rank={RANK}", f"{section}.lora_alpha={ALPHA}"]


@pytest.fixture(scope="module")
def chain(micro_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stage1: LoRA, two checkpoints. run: LoRA and replay, SAVED steps, then resumed to STEPS."""
    folder = tmp_path_factory.mktemp("lora")
    finish(
        folder / "stage1.txt",
        *("-m", "recipe.rerule.sft", "experiment=tiny", *lora("model")),
        *(f"model.path={micro_world}/model", f"data.train_files={micro_world}/sft.parquet"),
        *(f"trainer.default_local_dir={folder}/stage1", "optim.lr=1e-2", "trainer.logger=[file]"),
        "trainer.save_freq=2",
    )
    arguments = [
        *stage2_arguments(micro_world, folder / "run", *lora("actor_rollout_ref.model")),
        f"actor_rollout_ref.model.path={folder}/stage1/model",
        "actor_rollout_ref.model.lora.merge=true",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        # By the benchmark's own reward no group of so small a model may have different rewards, by chance.
        f"reward.custom_reward_function.path={ROOT}/tests/e2e/parity_reward.py",
    ]
    for number, steps in enumerate((SAVED, STEPS)):
        finish(
            folder / f"run{number}.txt",
            *("-m", "recipe.rerule.main", *arguments, f"trainer.total_training_steps={steps}"),
            *(["trainer.resume_mode=auto"] if number else []),
        )
    return folder


def finish(log: Path, *arguments: str) -> str:
    """Run a command of the recipe to its end; returns what it printed."""
    command = Command(list(arguments), log)
    try:
        assert command.wait() == 0, command.output[-3000:]
        return command.output
    finally:
        command.end()


def actor(chain: Path, step: int) -> Path:
    return chain / "run" / f"global_step_{step}" / "actor"


def weights(folder: Path) -> Tensors:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def prompts(world: Path, model: Path) -> list[list[int]]:
    """Token ids of some questions of the world."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = read_rows(world / "probes.parquet")[:4]
    return [tokenizer(row["prompt"][0]["content"]).input_ids[:40] for row in rows]


def logits(model: Any, ids: list[list[int]]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row])).logits[0] for row in ids])


def in_float32(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_the_adapter_on_its_base_is_the_merged_model(chain: Path, micro_world: Path) -> None:
    """peft's own computation, in float32, for the last model of both stages."""
    stage1 = chain / "stage1"
    ids = prompts(micro_world, micro_world / "model")
    for base, adapter, model in (
        (micro_world / "model", stage1 / "lora_adapter", stage1 / "model"),
        (stage1 / "model", actor(chain, STEPS) / "lora_adapter", actor(chain, STEPS) / "huggingface"),
    ):
        assert model_checks.problem(model) is None
        whole = logits(in_float32(model), ids)
        alone = logits(in_float32(base), ids)
        with_adapter = logits(PeftModel.from_pretrained(in_float32(base), adapter), ids)
        assert (whole - alone).abs().max() > 1e-2, "the adapter was trained"
        torch.testing.assert_close(with_adapter, whole, rtol=1e-5, atol=1e-5)
        assert json.loads((adapter / "adapter_config.json").read_text())["r"] == RANK


def test_only_what_has_an_adapter_has_changed(chain: Path) -> None:
    """W + (alpha / r) B A from the adapter's file, in float64; every other weight to the last bit."""
    before, after = weights(chain / "stage1" / "model"), weights(actor(chain, STEPS) / "huggingface")
    parts = weights(actor(chain, STEPS) / "lora_adapter")
    assert before.keys() == after.keys()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    owners = {name.removeprefix("base_model.model.").split(".lora_")[0] for name in parts}
    assert changed == {f"{owner}.weight" for owner in owners}
    for owner in owners:
        a, b = (parts[f"base_model.model.{owner}.lora_{part}.weight"].double() for part in "AB")
        expected = before[f"{owner}.weight"].double() + ALPHA / RANK * (b @ a)
        torch.testing.assert_close(after[f"{owner}.weight"].double(), expected, rtol=1e-6, atol=1e-7)


def test_all_checkpoints_count_and_can_be_read(chain: Path) -> None:
    for step in (SAVED, STEPS):
        named = json.loads((actor(chain, step).parent / "complete.json").read_text())["files"]
        assert {"actor/lora_adapter/adapter_config.json", "actor/huggingface/config.json"} <= set(named)
        assert checkpoints.problem(actor(chain, step).parent) is None
        assert model_checks.problem(actor(chain, step) / "huggingface") is None
    earlier = sorted((chain / "stage1").glob("global_step_*/huggingface"))
    assert earlier
    assert [model_checks.problem(folder) for folder in earlier] == [None] * len(earlier)


def test_replay_and_resume_go_on_from_the_adapter(chain: Path) -> None:
    """The reference is the stage-1 model: KL 0 with a new adapter, and not with one that was loaded."""
    metrics = read_metrics(chain / "run")
    assert sorted(metrics) == list(range(1, STEPS + 1))
    assert abs(metrics[1]["actor/kl_loss"]) < 1e-6
    assert metrics[SAVED + 1]["actor/kl_loss"] > 1e-4
    replayed = [step for step, data in metrics.items() if data["replay/updates"]]
    assert SAVED + 1 in replayed
    assert all(metrics[step]["replay/grad_norm"] > 0 for step in replayed)
    grown = metrics[SAVED]["replay/size"] + metrics[SAVED + 1]["replay/admitted"]
    assert metrics[SAVED + 1]["replay/size"] == grown - metrics[SAVED + 1]["replay/evicted"]
    # The engine samples from the merged weights: 6e-6 was seen, and the KL above is of another size.
    assert_same_model(metrics, 1e-4)


def test_evaluation_and_report_read_the_models(chain: Path, micro_world: Path) -> None:
    evaluation = chain / "evaluation"
    models = {"base": micro_world / "model", "stage1": chain / "stage1" / "model", "lora": chain / "run"}
    finish(
        chain / "evaluation.txt",
        *("-m", "recipe.rerule.evaluate", "model", "--platform", "cpu"),
        *(part for name, path in models.items() for part in ("--model", f"{name}={path}")),
        *("--probes", str(micro_world / "probes.parquet"), "--out", str(evaluation)),
    )
    results = json.loads((evaluation / "results.json").read_text())
    assert list(results)[:3] == ["base", "stage1", "lora"]
    answers = {(row.model, row.probe): row.response for row in tidy.read(evaluation).itertuples()}
    asked = {index for _, index in answers}
    assert any(answers["base", index] != answers["lora", index] for index in asked)
    finish(
        chain / "report.txt",
        *("-m", "recipe.rerule.report", "--results", str(evaluation), "--run", f"lora={chain}/run"),
        *("--data", str(micro_world), "--out", str(chain / "report.html")),
    )
    assert "lora" in (chain / "report.html").read_text()


def test_vllm_loads_the_adapter(chain: Path, micro_world: Path) -> None:
    """On the base model it says what the merged model says in transformers."""
    ids = prompts(micro_world, micro_world / "model")
    job = {
        "model": str(micro_world / "model"),
        "adapter": str(chain / "stage1" / "lora_adapter"),
        "prompts": ids,
        "out": str(chain / "vllm.json"),
    }
    (chain / "job.json").write_text(json.dumps(job))
    finish(chain / "vllm.txt", str(ROOT / "tests" / "e2e" / "vllm_adapter.py"), str(chain / "job.json"))
    found = json.loads((chain / "vllm.json").read_text())
    for name, folder in (("with", chain / "stage1" / "model"), ("without", micro_world / "model")):
        model = in_float32(folder)
        for row, answer in zip(ids, found[name], strict=True):
            whole, tokens = torch.tensor([row + answer["tokens"]]), torch.tensor(answer["tokens"])
            expected = model(input_ids=whole).logits[0, len(row) - 1 : -1].log_softmax(-1)
            own = expected.gather(1, tokens[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(answer["log_probs"]), own, rtol=0, atol=1e-3)
    assert found["with"] != found["without"]


def test_updates_move_the_adapter_alone_in_float32(micro_world: Path, tmp_path: Path) -> None:
    """B starts at 0, so the first update, the replay's, cannot move A; the second one moves both."""
    replay = Replay(ReplayConfig(threshold_rule="fixed", threshold=1.0))
    replay.offer([make_group(index, rewards=[0.0, 0.5]) for index in range(4)], step=1)
    save(replay, tmp_path / "groups")
    job = {"model": micro_world / "model", "groups": tmp_path / "groups", "out": tmp_path / "seen.json"}
    (tmp_path / "job.json").write_text(json.dumps({name: str(path) for name, path in job.items()}))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    finish(tmp_path / "log.txt", *launcher, f"{ROOT}/tests/e2e/lora_updates.py", str(tmp_path / "job.json"))
    for base, seen in json.loads((tmp_path / "seen.json").read_text()).items():
        parts = {part: {name for name in seen["dtypes"] if f"lora_{part}" in name} for part in "AB"}
        assert len(parts["A"]) == len(parts["B"]) > 0
        for name, dtype in seen["dtypes"].items():
            of_adapter = name in parts["A"] | parts["B"]
            assert dtype == f"torch.{'float32' if of_adapter or base == 'fp32' else 'bfloat16'}", name
        moved = {
            update: {n for n, share in seen[update].items() if share} for update in ("replay", "on_policy")
        }
        assert moved["replay"] == parts["B"], base
        assert moved["on_policy"] == parts["A"] | parts["B"], base
        # Steps of 1e-6 and less beside weights of 0.1: in bfloat16 next to none would move.
        assert min(seen["on_policy"][name] for name in parts["A"]) > 0.1, base
