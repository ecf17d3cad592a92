"""What golden files need of today's code beyond its commands: one function for each room.

A rewrite of a room changes its function here and nothing else of the golden tests.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe.rerule import replay
from recipe.rerule.evaluation import tidy
from recipe.rerule.replay import ImportanceConfig, ReplayConfig, ReplayHook, RolloutGroup

STEPS, PROMPTS, SAVED_AFTER = 12, 7, 7
"""Of a made-up run: steps, prompts of each, and the step after which it is saved and loaded."""


def rollout_group(index: int, step: int, rng: random.Random) -> RolloutGroup:
    """Four responses to a prompt that succeeds the more often the higher its number is."""
    rewards = [float(rng.random() < index / PROMPTS) for _ in range(4)]
    lengths = [1 + rng.randrange(4) for _ in rewards]
    tokens = sum(lengths)
    generator = torch.Generator().manual_seed(1000 * step + index)

    def ids(count: int) -> Tensor:
        return torch.randint(1, 500, (count,), generator=generator, dtype=torch.int32)

    advantages = torch.tensor(rewards) - sum(rewards) / len(rewards)
    return RolloutGroup(
        prompt_index=index,
        side=("forget", "retain")[index % 2],
        mode=("qa", "fb")[index // 2 % 2],
        step=step,
        prompt_ids=ids(3),
        response_ids=ids(tokens),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        response_mask=torch.ones(tokens, dtype=torch.bool),
        old_log_probs=-torch.rand(tokens, generator=generator),
        advantages=advantages.repeat_interleave(torch.tensor(lengths)),
        rewards=torch.tensor(rewards),
        ref_log_probs=-torch.rand(tokens, generator=generator),
    )


def rollout_groups(step: int) -> list[RolloutGroup]:
    rng = random.Random(step)
    return [rollout_group(index, step, rng) for index in range(PROMPTS)]


def replay_run(settings: dict[str, Any], saved: Path | None = None) -> dict[str, Any]:
    """A line of text a step (what was stored, left and was drawn), and all metrics of the last step.

    saved: where the state is saved after a step, for a new hook to go on from; None to go on as it is.
    """
    own = dict(settings)
    ranks = own.pop("multiple_of", 1)
    hook = ReplayHook(ReplayConfig(**own), ranks)
    lines = []
    for step in range(1, STEPS + 1):
        plan = hook.before_update(rollout_groups(step), step)
        hook.after_update(
            plan, lambda groups, more: {"replay/pg_loss": float(len(groups)), "more": float(more)}
        )
        lines.append(_step_line(hook.log.record()))
        if saved is not None and step == SAVED_AFTER and hook.replay is not None:
            replay.save(hook.replay, saved, {"rollout.n": 4})
            hook = ReplayHook(ReplayConfig(**own), ranks)
            assert hook.replay is not None
            replay.load(hook.replay, saved, {"rollout.n": 4})
    metrics = {name: value for name, value in hook.metrics().items() if "seconds" not in name}
    return {"steps": lines, "metrics of the last step": metrics}


def _step_line(record: dict[str, Any]) -> str:
    """ "tau 0.5 size 3 stored 1@2 left 0@1 capacity drawn 1@2 0@2": a group is prompt @ step of storing."""
    parts = [f"tau {record['threshold']:.6g} size {record['size']}"]
    if record["stored"]:
        parts.append("stored " + " ".join(f"{index}@{step}" for index, step in record["stored"]))
    if record["evicted"]:
        parts.append(
            "left " + " ".join(f"{index}@{step} {reason}" for index, step, reason in record["evicted"])
        )
    parts += ["drawn " + " ".join(f"{index}@{step}" for index, step in drawn) for drawn in record["drawn"]]
    return " ".join(parts)


def replay_update(settings: dict[str, Any]) -> dict[str, Any]:
    """One replay update of three groups, in float64: weights, metrics, losses and the gradient's norm."""
    groups = [group for group in rollout_groups(2) if group.has_signal][:3]
    rows = replay.pad_groups(groups, pad_token_id=0)
    mask = rows["response_mask"]
    moved = torch.randn(mask.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    log_probs = (rows["old_log_probs"].double() + 0.3 * moved).requires_grad_()
    ratios = replay.log_ratios(log_probs, rows["old_log_probs"], mask)
    weights, metrics = replay.weigh(ratios, mask, ImportanceConfig(**settings))
    found: dict[str, Any] = {
        "metrics": metrics,
        "weights": [_valid(*row) for row in zip(weights, mask, strict=True)],
    }
    loss = replay.replay_loss(
        log_probs,
        weights,
        rows["advantages"].double(),
        mask,
        replay.token_mean,
        ref_log_probs=rows["ref_log_prob"].double(),
        kl_coef=0.01,
        kl=replay.low_var_kl,
    )
    (gradient,) = torch.autograd.grad(loss.total, log_probs)
    total, policy_gradient, kl = (float(part.detach()) for part in loss)
    found["token_mean"] = {
        "loss": total,
        "policy gradient": policy_gradient,
        "KL": kl,
        "gradient norm": float(gradient.norm()),
    }
    return found


def _valid(values: Tensor, mask: Tensor) -> list[float]:
    return values[mask.bool()].tolist()


def unlearning_losses(work: Path) -> dict[str, dict[str, float]]:
    """Of each method, in float64: the loss of a batch of made rows, its terms, the norm of the gradient."""
    from recipe.rerule.unlearning import presets
    from tests.unlearning import made

    folder = made.put_model(work / "model")
    model, start, reinforced = (made.plain_model(folder).double() for _ in range(3))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in (*model.parameters(), *reinforced.parameters()):
            value += 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    found = {}
    for name in presets.names():
        loss, terms = _unlearning_loss(presets.load(name), made.rows(), model, start, reinforced)
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        norm = torch.cat([one.flatten() for one in gradients if one is not None]).norm()
        found[name] = {"loss": float(loss.detach()), **terms, "gradient norm": float(norm)}
    return found


def _unlearning_loss(method: Any, rows: Any, model: Any, start: Any, reinforced: Any) -> tuple[Tensor, Any]:
    """The loss of four groups of rows, as verl's engine asks for it: of the logits, then of log-probs."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import SFTTensorCollator

    from recipe.rerule.unlearning import batch
    from recipe.rerule.unlearning.loss import MethodLoss
    from recipe.rerule.unlearning.rows import GroupDataset
    from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level

    groups = GroupDataset(rows, method, byte_level(LLAMA3_TEMPLATE), 300, seed=0)
    drawn = [row for place in (0, 3, 5, 6) for row in groups.group(0, place)]
    data = tu.get_tensordict(tensor_dict=SFTTensorCollator("no_padding")(drawn), non_tensor_dict={})
    tu.assign_non_tensor(data, groups=4, dp_size=1, **batch.counts(data, method.kl_positions))
    loss = MethodLoss(method, _Frozen(start), _Frozen(reinforced))
    logits = _logits(model, data)
    output = {"log_probs": _nested(_next_log_probs(logits, data), data)}
    if method.needs_logits:
        terms = loss(student_logits=logits[None], data=data)
        output |= {name: _nested(value[0], data) for name, value in terms.items()}
    return loss(model_output=output, data=data)


class _Frozen:
    """A frozen model without verl's engine."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def log_probs(self, data: Any, rows: Tensor) -> Tensor:
        part = _selected(data, rows)
        return _next_log_probs(_logits(self._model, part), part).detach()

    def logits(self, data: Any, rows: Tensor) -> Tensor:
        return _logits(self._model, _selected(data, rows)).detach()


def _selected(data: Any, rows: Tensor) -> Any:
    from verl.utils import tensordict_utils as tu

    return tu.index_select_tensor_dict(data, rows)


def _logits(model: Any, data: Any) -> Tensor:
    return torch.cat([model(input_ids=ids[None]).logits[0] for ids in data["input_ids"].unbind()])


def _next_log_probs(logits: Tensor, data: Any) -> Tensor:
    labels = data["input_ids"].values().roll(-1)
    return logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]


def _nested(values: Tensor, data: Any) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, data["input_ids"].offsets())


def weights(folder: Path) -> dict[str, list[float]]:
    """Of each tensor of a model folder its mean and its root mean square."""
    from safetensors.torch import load_file

    tensors = {
        name: one for file in sorted(folder.glob("*.safetensors")) for name, one in load_file(file).items()
    }
    return {
        name: [float(one.double().mean()), float(one.double().square().mean().sqrt())]
        for name, one in sorted(tensors.items())
    }


def minimal_metrics(model: Path, rows_file: Path) -> dict[str, list[dict[str, float]]]:
    """Metrics of three steps of `minimal`, with replay from the second one on, and without."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from data_prep.contract import read_rows
    from recipe.rerule.minimal import Settings, train

    found = {}
    for name in ("ReRULE", "RULE"):
        settings = Settings(
            steps=3,
            prompts=8,
            rollouts=4,
            response_limit=6,
            learning_rate=1e-3,
            replay=name == "ReRULE",
            threshold=1.0,
            warmup_steps=1,
            min_groups=2,
            capacity=16,
            groups_per_update=3,
        )
        policy, tokenizer = (
            AutoModelForCausalLM.from_pretrained(model).eval(),
            AutoTokenizer.from_pretrained(model),
        )
        torch.manual_seed(0)
        metrics = train(policy, tokenizer, read_rows(rows_file), settings)
        found[name] = [{key: one[key] for key in one if "/" in key} for one in metrics]
    return found


def verl_settings(name: str) -> Any:
    """verl's own configuration of this name, resolved."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        return OmegaConf.to_container(compose(name), resolve=True)


TESTED = ("difference", "low", "high", "p_value", "p_holm", "facts")
"""What is kept of a paired test."""


def evaluation(folder: Path) -> dict[str, Any]:
    """The numbers of a folder of `evaluate model`, with their intervals and tests, and what a response has.

    A metric is one entry: its numbers in the order of `rows`, and its intervals in the order of the models. A
    test is what TESTED names.
    """
    found = {
        name: _json(folder / f"{name}.json") for name in ("results", "anchors", "intervals", "comparisons")
    }
    responses = tidy.read_responses(folder)
    (first,) = json.loads(responses.head(1).to_json(orient="records"))
    meta = _json(folder / "meta.json")
    rows = found["results"] | found["anchors"]
    return {
        "rows": list(rows),
        "numbers": _by_metric(rows),
        "intervals": _by_metric({name: found["intervals"].get(name, {}) for name in found["results"]}),
        "tests": {
            f"{one['a']}, {one['b']}, {one['metric']}": [one[name] for name in TESTED]
            for one in found["comparisons"]
        },
        "responses": {
            "count": len(responses),
            "first": {name: value for name, value in first.items() if value is not None},
        },
        "settings": {
            name: meta[name]
            for name in ("benchmark", "unit", "rouge_l_convention", "benchmark_settings", "probes")
        }
        | {"keys": list(meta)},
    }


def _by_metric(by_model: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    metrics = dict.fromkeys(metric for numbers in by_model.values() for metric in numbers)
    return {metric: [numbers.get(metric) for numbers in by_model.values()] for metric in metrics}


def judged(folder: Path) -> dict[str, Any]:
    """The numbers of a folder of `evaluate judge`."""
    found = _json(folder / "naturalness.json")
    return {
        name: found[name] for name in ("results", "anchors", "counts", "intervals", "comparisons", "missing")
    }


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def attacks(folder: Path) -> dict[str, Any]:
    """The rows of a folder of `evaluate attack`, its curves, and how many values of single probes it has."""
    from recipe.rerule.evaluation import tidy

    rows = _json(folder / "attacks.json")
    first = next(iter(next(iter(rows.values())).values()))
    table = tidy.read(folder)
    # A value of a fact's probe or of a text: the mean over samples, folds and seeds.
    places = table[["model", "attack", "setting", "side", "fact", "probe"]]
    scores = places[table["score"].notna()].drop_duplicates()
    refusals = places[table["refused"].notna() & (table["side"] == "forget")].drop_duplicates()
    curves = _json_lines(folder / "curves.jsonl") if (folder / "curves.jsonl").is_file() else []
    return {
        "columns": list(first),
        "rows": {
            f"{attack}, {model}": list(row.values())
            for attack, of_models in rows.items()
            for model, row in of_models.items()
        },
        "curves": curves,
        "values of single probes": len(scores) + len(refusals),
    }


def begin_run(folder: Path) -> None:
    """Say that a folder is of a run of stage 2."""
    from recipe.rerule.runs import run_folder

    run_folder.begin(folder, stage=2)


def finish_run(folder: Path, step: int) -> None:
    """Say that the checkpoint of a step is complete, and the best by validation."""
    from recipe.rerule.runs import checkpoints

    checkpoints.finish(folder, step)


def run_records(folder: Path) -> dict[str, Any]:
    """The records of a run: metrics by step, and of each other kind its lines and the names in the last one.

    Of stage 2 also, for each step: the indices of its prompts and of the groups that replay stored, and how
    many it drew. Indices ascend, since the order of a step's groups follows from the lengths of responses.
    """
    kinds = {path.stem: _json_lines(path) for path in sorted((folder / "records").glob("*.jsonl"))}
    rollouts = sorted((folder / "records" / "rollouts").glob("*.jsonl"))
    sizes = kinds | {f"rollouts/{path.stem}": _json_lines(path) for path in rollouts}
    return {
        "steps": {line["step"]: line["data"] for line in kinds["metrics"]},
        "sizes": {name: {"lines": len(lines), "names": list(lines[-1])} for name, lines in sizes.items()},
        "prompts": [sorted(one["index"] for one in line["prompts"]) for line in kinds.get("prompts", [])],
        "stored": [sorted(index for index, _ in line["stored"]) for line in kinds.get("replay", [])],
        "drawn": [[len(drawn) for drawn in line["drawn"]] for line in kinds.get("replay", [])],
    }


def leave_figures_undrawn(monkeypatch: Any) -> None:
    """Figures of a report are made and not rendered, which takes most of its time."""
    from matplotlib import pyplot

    from recipe.rerule.reporting import style

    def png(canvas: Any) -> bytes:
        pyplot.close(canvas)
        return b"not drawn"

    monkeypatch.setattr(style, "png", png)
