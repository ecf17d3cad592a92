"""The command with --texts: every membership score against transformers alone, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from transformers import AutoModelForCausalLM

from recipe.rerule.evaluation import tidy
from tests.golden.inputs import people_tokenizer

SHOTS = 4
Numbers = dict[str, list[float]]


@pytest.fixture
def texts(world: Path, tmp_path: Path) -> Path:
    """A folder of texts on the people: to forget, and others."""
    return Path(shutil.copytree(world / "texts", tmp_path / "texts"))


@pytest.fixture
def attack(attack: Callable[..., int], world: Path) -> Callable[..., int]:
    """attack(*arguments): the exit code of the command on MUSE's questions."""
    questions = ["--probes", f"{world / 'questions/probes.parquet'}", "--benchmark", "muse_books"]

    def call(*arguments: str, **settings: bool) -> int:
        return attack(*questions, *arguments, **settings)

    return call


def losses(model: Any, ids: list[int], start: int) -> Any:
    """Of the tokens from `start` on, in float64."""
    logits = model(torch.tensor([ids])).logits[0, start - 1 : -1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[start:]), reduction="none")


def lowest(values: Any, share: float) -> float:
    """Minus the mean of the lowest share of the values."""
    return -float(np.mean(sorted(values)[: max(1, int(share * len(values)))]))


def numbers(model: Any, control: Any, text: str, prefix: str) -> dict[str, float]:
    """All scores of a text by their definitions, behind BOS."""
    tokens = people_tokenizer()
    ids, before = tokens(text).input_ids, tokens(prefix).input_ids
    parameters = list(model.parameters())
    each = losses(model, ids, 1)
    gradients = torch.autograd.grad(each.mean(), parameters, allow_unused=True)
    norms = [float(one.norm()) for one in gradients if one is not None]
    with torch.no_grad():
        p = model(torch.tensor([ids])).logits[0, :-1].double().softmax(-1).numpy()
        loss = float(each.mean())
        mean = (p * np.log(p)).sum(-1)
        deviation = np.sqrt((p * np.log(p) ** 2).sum(-1) - mean**2)
        standard = (-each.numpy() - mean) / deviation
        return {
            "loss": loss,
            "zlib": loss / len(zlib.compress(text.encode())),
            **{f"min_{int(100 * s)}": lowest(-each.numpy(), s) for s in (0.2, 0.4)},
            **{f"min_plus_plus_{int(100 * s)}": lowest(standard, s) for s in (0.2, 0.4)},
            "relative_conditional": -float(losses(model, before + ids[1:], len(before)).mean()) / loss,
            "gradient_norm": math.hypot(*norms),
            "gradient_norm_open_unlearning": float(np.mean(norms)),
            "reference": loss - float(losses(control, ids, 1).mean()),
        }


def test_every_score_is_that_of_transformers(
    attack: Callable[..., int], world: Path, texts: Path, tmp_path: Path
) -> None:
    members = {name: json.loads((texts / f"{name}.json").read_text()) for name in ("forget", "holdout")}
    named = ["--attacks", "membership", "membership_reference", "--budget", "full"]
    assert attack("--texts", f"{texts}", *named) == 0
    results = json.loads((tmp_path / "out/attacks.json").read_text())
    scored = tidy.read(tmp_path / "out").groupby(["attack", "setting", "model", "side"])["score"]
    models = {
        name: AutoModelForCausalLM.from_pretrained(world / "models" / name).eval()
        for name in ("original", "refusing", "control")
    }
    prefix = "".join(f"{text}\n\n" for text in members["holdout"][:SHOTS])
    for name, model in models.items():
        own = {
            part: [numbers(model, models["control"], text, prefix) for text in of_part]
            for part, of_part in members.items()
        }
        for score in own["forget"][0]:
            key = ("membership_reference", "") if score == "reference" else ("membership", score)
            attacked = "/".join(filter(None, key))
            skipped = SHOTS if score == "relative_conditional" else 0
            low = [one[score] for one in own["forget"]]
            high = [one[score] for one in own["holdout"][skipped:]]
            for part, expected in (("forget", low), ("others", high)):
                found = scored.get_group((*key, name, part)).tolist()
                assert found == pytest.approx(expected, rel=2e-5, abs=1e-6)
            auc = mannwhitneyu(high, low).statistic / (len(low) * len(high))
            if (score, name) != ("reference", "control"):  # there all differences are rounding
                assert results[attacked][name]["after"] == pytest.approx(auc, abs=1e-9), (score, name)
            assert results[attacked][name]["facts"] == len(members["forget"])
    assert {row["after"] for row in results["membership/text_only"].values()} == {
        results["membership/text_only"]["control"]["after"]
    }


@pytest.mark.parametrize(
    ("changed", "name", "message"),
    [
        (None, "membership",
         "attack membership: membership inference needs texts to forget and one other set; there are none. "
         "Give a folder of both with --texts"),
        ({"forget": ["one text"]}, "membership",
         "attack membership: --texts: set forget has 1 text; at least 2 are needed"),
        ({"forget": ["Home of Ada", " is" * 600]}, "membership",
         "attack membership: --texts: text 1 of set forget has 601 tokens, and the models take 256; "
         "shorten it"),
        ({"forget": [""]}, "membership", "forget.json: row 0: text is missing, empty or no str"),
        ({"holdout": []}, "membership", "holdout.json: holds no rows"),
        ({"holdout": None}, "membership", "texts: holdout.json is missing"),
        ({}, "membership_reference",
         "attack membership_reference needs a model that never knew the facts, --control FOLDER"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_scored(
    attack: Callable[..., int],
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, list[str] | None] | None,
    name: str,
    message: str,
) -> None:
    for part, members in (changed or {}).items():
        (texts / f"{part}.json").unlink()
        if members is not None:
            (texts / f"{part}.json").write_text(json.dumps(members))
    given = ["--texts", f"{texts}"] if changed is not None else []
    before = sorted(tmp_path.rglob("*"))
    assert attack("--attacks", name, *given, with_control=name == "membership") == 2
    assert sorted(tmp_path.rglob("*")) == before
    (line,) = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("warning")]
    assert line.startswith("error: ")
    assert line.endswith(message)
