"""Membership inference: every score against transformers alone, by the command, and what is refused."""

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
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.rerule import evaluate
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks import membership
from recipe.rerule.evaluation.attacks.attack import Models
from recipe.rerule.evaluation.attacks.forward import Piece, text_piece
from recipe.rerule.evaluation.attacks.membership import (
    behind_prefix,
    min_k_plus_plus,
    token_scores,
)
from tests.evaluation.attacks import made
from tests.evaluation.attacks.conftest import words
from tests.golden.inputs import people_tokenizer
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.unlearning.made import plain_model, put_model

SHOTS = 4


@pytest.fixture
def texts(world: Path, tmp_path: Path) -> Path:
    """A folder of texts on the people: to forget, and others."""
    return Path(shutil.copytree(world / "texts", tmp_path / "texts"))


@pytest.fixture
def attack(world: Path, tmp_path: Path, stand_in: None) -> Callable[..., int]:
    """attack(*arguments): the exit code of the command on MUSE's questions."""

    def call(*arguments: str, with_control: bool = True) -> int:
        given = words(world, tmp_path / "out", with_control)
        place = given.index("--max-tokens")  # MUSE has its own
        questions = ["--probes", f"{world / 'questions/probes.parquet'}", "--benchmark", "muse_books"]
        return evaluate.main([*given[:place], *given[place + 2 :], *questions, *arguments])

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
            skipped = SHOTS if score == "relative_conditional" else 0
            low = [one[score] for one in own["forget"]]
            high = [one[score] for one in own["holdout"][skipped:]]
            for part, expected in (("forget", low), ("others", high)):
                found = scored.get_group((*key, name, part)).tolist()
                assert found == pytest.approx(expected, rel=2e-5, abs=1e-6)
            wanted = mannwhitneyu(high, low).statistic / (len(low) * len(high))
            row = results["/".join(filter(None, key))][name]
            if (score, name) != ("reference", "control"):  # there all differences are rounding
                assert row["after"] == pytest.approx(wanted, abs=1e-9), (score, name)
            assert row["facts"] == len(members["forget"])


@pytest.mark.parametrize(
    ("changed", "name", "message"),
    [
        (None, "membership",
         "attack membership: membership inference needs texts to forget and one other set; there are none. "
         "Give a folder of both with --texts"),
        ({"forget": ["Home of Ada", " is" * 600]}, "membership",
         "attack membership: --texts: text 1 of set forget has 601 tokens, and the models take 256; "
         "shorten it"),
        ({}, "membership_reference",
         "attack membership_reference needs a model that never knew the facts, --control FOLDER"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_scored(
    attack: Callable[..., int],
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, list[str]] | None,
    name: str,
    message: str,
) -> None:
    for part, members in (changed or {}).items():
        (texts / f"{part}.json").write_text(json.dumps(members))
    given = ["--texts", f"{texts}"] if changed is not None else []
    before = sorted(tmp_path.rglob("*"))
    assert attack("--attacks", name, *given, with_control=name == "membership") == 2
    assert sorted(tmp_path.rglob("*")) == before
    (line,) = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("warning")]
    assert line.startswith("error: ")
    assert line.endswith(message)


@pytest.mark.parametrize(
    "tokenizer", [byte_level(LLAMA3_TEMPLATE), byte_level(adds_bos=False), sentencepiece(ends_with_eos=True)]
)
def test_the_same_tokens_are_scored_behind_a_prefix(tokenizer: Any) -> None:
    alone = text_piece(tokenizer, "Who wrote it")
    behind = behind_prefix(tokenizer, ["it", "Who it"], "Who wrote it")
    assert behind.ids[behind.start :] == alone.ids[alone.start :]
    text = tokenizer.decode(behind.ids, skip_special_tokens=True)
    assert text.split() == ["it", "Who", "it", "Who", "wrote", "it"]
    assert text.count("\n\n") == 2
    assert sum(token == tokenizer.bos_token_id for token in behind.ids) <= 1


def test_prefixes_are_as_long_as_the_context_allows(tmp_path: Path) -> None:
    """And texts of more positions than are computed at a time are scored whole."""
    model = plain_model(put_model(tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    members = [f"Who wrote it? Ada{n} wrote it {n * 7}." for n in range(6)]
    others = [f"it wrote Who? {n * 5} it Bea{n} wrote." for n in range(6)]
    longest = max(len(text_piece(tokenizer, text).ids) for text in members + others)
    attack = membership.ATTACKS[0]
    assert attack.measure is not None
    for context, first in ((longest * 3 + 9, 2), (longest, None)):
        sets = {"forget": members, "retain": others}
        given = made.material([], tokenizer=tokenizer, context=context, texts=sets)
        found = made.scores(attack.measure(Models(model), given, attack.options("quick")))
        assert next(iter(found.get(("relative_conditional", "others"), {})), None) == first
    ids = torch.randint(5, 250, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    whole, second = token_scores(model.double(), [Piece(ids, 1, "text"), Piece(ids, 130, "text")])
    assert len(whole.means) == 199
    assert whole.means[129:] == pytest.approx(second.means, abs=1e-12)
    with torch.no_grad():
        model.lm_head.weight[:] = 0  # a uniform distribution, whose deviation is 0
    (uniform,) = token_scores(model, [Piece(ids[:20], 1, "text")])
    assert uniform.loss == pytest.approx(math.log(model.config.vocab_size), abs=1e-12)
    assert min_k_plus_plus(uniform, 0.2) == 0
