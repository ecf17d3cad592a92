"""The command with --texts: every membership score against transformers alone, and what is refused."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from transformers import AutoModelForCausalLM

from recipe.rerule import evaluate
from recipe.rerule.evaluation.attack_command import checked
from recipe.rerule.evaluation.engine import run
from tests.evaluation.attack_command import made
from tests.evaluation.conftest import write_probes

TEXTS = {
    "forget": [f"{made.person(n)} is in {made.home(n)}" for n in made.FORGET],
    "holdout": [f"{made.home(n)} has {made.person(n - 8)} Home" for n in made.RETAIN],
}
SHOTS = 4
Numbers = dict[str, list[float]]


def put_texts(folder: Path, **texts: list[str]) -> Path:
    folder.mkdir()
    for name, members in (TEXTS | texts).items():
        (folder / f"{name}.json").write_text(json.dumps(members))
    return folder


@pytest.fixture
def attack(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """attack(*arguments): the exit code of the command on MUSE's probes, with transformers for vLLM."""
    probes = [
        replace(one, data_source="rerule/muse_books", raw=True) for one in made.probes(1) if one.mode == "qa"
    ]
    write_probes(tmp_path / "probes.parquet", probes)
    monkeypatch.setattr(run, "run_worker", made.run_worker)
    monkeypatch.setattr(checked, "select", lambda name: None)
    given = [
        *("attack", "--platform", "cpu", "--probes", f"{tmp_path / 'probes.parquet'}"),
        *(
            "--model",
            f"original={world / 'models/original'}",
            "--model",
            f"refusing={world / 'models/refusing'}",
        ),
    ]
    control = ["--control", f"{world / 'models/control'}"]

    def call(*arguments: str, with_control: bool = True) -> int:
        return evaluate.main([*given, *(control if with_control else []), *arguments])

    return call


def losses(model: Any, ids: list[int], start: int) -> Any:
    """Of the tokens from `start` on, in float64."""
    logits = model(torch.tensor([ids])).logits[0, start - 1 : -1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[start:]), reduction="none")


def lowest(values: Any, share: float) -> float:
    """Minus the mean of the lowest share of the values."""
    return -float(np.mean(sorted(values)[: max(1, int(share * len(values)))]))


def numbers(model: Any, control: Any, text: str, prefix: str) -> dict[str, float]:
    """All scores of a text by their definitions. The tokenizer adds no BOS: the first token is not scored."""
    tokens = made.tokenizer()
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
            "relative_conditional": -float(losses(model, before + ids, len(before) + 1).mean()) / loss,
            "gradient_norm": math.hypot(*norms),
            "gradient_norm_open_unlearning": float(np.mean(norms)),
            "reference": loss - float(losses(control, ids, 1).mean()),
        }


def test_every_score_is_that_of_transformers(attack: Callable[..., int], world: Path, tmp_path: Path) -> None:
    texts = put_texts(tmp_path / "texts")
    named = ["--attacks", "membership", "membership_reference", "--budget", "full"]
    assert attack("--texts", f"{texts}", *named, "--out", f"{tmp_path / 'out'}") == 0
    results = json.loads((tmp_path / "out/attacks.json").read_text())
    scored: dict[Any, dict[str, float]] = {}
    for line in (tmp_path / "out/scores.jsonl").read_text().splitlines():
        one = json.loads(line)
        scored.setdefault((one["attack"], one["model"], one["set"]), {})[one["unit"]] = one["value"]
    models = {
        name: AutoModelForCausalLM.from_pretrained(world / "models" / name).eval()
        for name in ("original", "refusing", "control")
    }
    prefix = "".join(f"{text}\n\n" for text in TEXTS["holdout"][:SHOTS])
    for name, model in models.items():
        own = {
            part: [numbers(model, models["control"], text, prefix) for text in members]
            for part, members in TEXTS.items()
        }
        for score in own["forget"][0]:
            attacked = "membership_reference" if score == "reference" else f"membership/{score}"
            skipped = SHOTS if score == "relative_conditional" else 0
            low = [one[score] for one in own["forget"]]
            high = [one[score] for one in own["holdout"][skipped:]]
            for part, expected in (("forget", low), ("others", high)):
                assert list(scored[attacked, name, part].values()) == pytest.approx(
                    expected, rel=2e-5, abs=1e-6
                )
            auc = mannwhitneyu(high, low).statistic / (len(low) * len(high))
            if (score, name) != ("reference", "control"):  # there all differences are rounding
                assert results[attacked][name]["after"] == pytest.approx(auc, abs=1e-9), (score, name)
            assert results[attacked][name]["facts"] == len(TEXTS["forget"])
    # The homes to forget are likelier than the never-knew model has them, and the others are not.
    assert results["membership_reference"]["original"]["after"] > 0.9
    assert {row["after"] for row in results["membership/text_only"].values()} == {
        results["membership/text_only"]["control"]["after"]
    }


@pytest.mark.parametrize(
    ("texts", "arguments", "message"),
    [
        ({}, ["membership"],
         "attack membership: membership inference needs texts to forget and one other set; there are none. "
         "Give a folder of both with --texts"),
        ({"forget": ["one text"]}, ["membership"],
         "attack membership: --texts: set forget has 1 text; at least 2 are needed"),
        ({"holdout": ["Home of AZ", "has"]}, ["membership_reference"],
         "attack membership_reference: --texts: text 1 of set holdout has no token to score behind another "
         "one: 'has'; leave it out"),
        ({"forget": ["Home of AZ", " is" * 600]}, ["membership"],
         "attack membership: --texts: text 1 of set forget has 600 tokens, and the models take 512; "
         "shorten it"),
        ({"forget": [""]}, ["membership"], "forget.json: row 0: text is missing, empty or no str"),
        ({"holdout": []}, ["membership"], "holdout.json: holds no rows"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_scored(
    attack: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    texts: dict[str, list[str]],
    arguments: list[str],
    message: str,
) -> None:
    given = ["--texts", f"{put_texts(tmp_path / 'texts', **texts)}"] if texts else []
    assert refused(attack, tmp_path, capsys, "--attacks", *arguments, *given).endswith(message)


def test_what_is_missing_is_named(
    attack: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = put_texts(tmp_path / "texts")
    (texts / "holdout.json").unlink()
    given = ["--attacks", "membership", "--texts", f"{texts}"]
    assert refused(attack, tmp_path, capsys, *given).endswith("texts: holdout.json is missing")
    given = ["--attacks", "membership_reference", "--texts", f"{texts}"]
    assert refused(attack, tmp_path, capsys, *given, with_control=False) == (
        "attack membership_reference needs a model that never knew the facts, --control FOLDER"
    )


def refused(
    attack: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
    **settings: Any,
) -> str:
    """The one line of the error; nothing is written."""
    before = sorted(tmp_path.rglob("*"))
    assert attack(*arguments, "--out", f"{tmp_path / 'out'}", **settings) == 2
    assert sorted(tmp_path.rglob("*")) == before
    (line,) = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("warning")]
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
