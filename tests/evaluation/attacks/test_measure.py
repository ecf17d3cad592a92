"""Audits by forward passes, against modules called one by one, and against transformers alone."""

import json
import math
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks import forward, membership, uds
from recipe.rerule.evaluation.attacks.attack import Models
from recipe.rerule.evaluation.attacks.forward import Piece, asked_piece, mean_log_probs, states, text_piece
from recipe.rerule.evaluation.attacks.logit_lens import lens
from recipe.rerule.evaluation.attacks.membership import behind_prefix, min_k_plus_plus, token_scores
from recipe.rerule.evaluation.attacks.uds import drops
from recipe.rerule.evaluation.engine.requests import PromptText
from tests.evaluation.attacks.made import gemma2, gpt2, llama, material, near, pieces, probe, scores
from tests.golden.inputs import people_tokenizer
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.unlearning.made import plain_model

# Tokens, states and layers.


def by_layers(model: Any, ids: list[int], changed: tuple[int, slice, Tensor] | None = None) -> list[Tensor]:
    """The states behind every layer of one unpadded text, layer by layer: [tokens, hidden size] each.

    `changed` puts other states behind one layer, at some positions.
    """
    inner = model.model
    state = inner.embed_tokens(torch.tensor([ids]))
    places = torch.arange(len(ids))[None]
    rotary = inner.rotary_emb(state, places)
    mask = torch.full((len(ids), len(ids)), -torch.inf, dtype=state.dtype).triu(1)[None, None]
    found = []
    for number, layer in enumerate(inner.layers):
        out = layer(state, attention_mask=mask, position_ids=places, position_embeddings=rotary)
        state = (out[0] if isinstance(out, tuple) else out).clone()
        if changed is not None and number == changed[0]:
            state[0, changed[1]] = changed[2]
        found.append(state[0])
    return found


def read(model: Any, state: Tensor, piece: Piece) -> float:
    """The mean log-probability of the scored tokens that norm and output layer read of states."""
    log_p = model.lm_head(model.model.norm(state)).log_softmax(-1)
    right = [float(log_p[n - 1, piece.ids[n]]) for n in range(piece.start, len(piece.ids))]
    return sum(right) / len(right)


@torch.no_grad()
def test_states_lens_and_patching_against_layers_called_one_by_one(folder, monkeypatch):
    """States are those before the final norm; the lens reads one model with the head of another."""
    original, source = near(folder, 0), near(folder, 1)
    made = pieces(AutoTokenizer.from_pretrained(folder))
    found = {}
    for size in (1, 3):
        monkeypatch.setattr(forward, "BATCH", size)
        found[size] = states(source, made)
    read_of, dropped = lens(original, source, made), drops(original, source, made)
    for number, piece in enumerate(made):
        layers, places = by_layers(source, piece.ids), slice(piece.start - 1, len(piece.ids) - 1)
        for of_size in found.values():
            wanted = torch.stack(layers)[:, places]
            torch.testing.assert_close(of_size[number], wanted, rtol=0, atol=1e-6)
        own = read(original, by_layers(original, piece.ids)[-1], piece)
        for layer, state in enumerate(layers):
            assert float(read_of[number, layer]) == pytest.approx(read(original, state, piece), abs=1e-6)
            patched = by_layers(original, piece.ids, (layer, places, state[places]))[-1]
            drop = own - read(original, patched, piece)
            assert float(dropped[number, layer]) == pytest.approx(drop, abs=1e-6)


def test_depth_by_hand_and_facts_without_one(folder, capsys, monkeypatch):
    """Weights 1 and 3: (1 * 0.5 + 3 * 1) / 4; a drop below 0 counts 0, and the third layer does not carry."""
    model, given = plain_model(folder), material([probe(n) for n in range(3)])
    never_knew = torch.tensor([[1.0, 3.0, 0.05], [1.0, 3.0, 0.0], [0.01, 0.05, -1.0]], dtype=torch.float64)
    unlearned = torch.tensor([[0.5, 4.0, 9.0], [-2.0, 0.75, 9.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    returned = iter([never_knew, unlearned, 0 * never_knew, unlearned])
    monkeypatch.setattr(uds, "drops", lambda original, source, pieces: next(returned))
    measure, models = uds.ATTACKS[0].measure, Models(model, lambda: model, lambda: model)
    assert scores(measure(models, given, {"phrasings": 1}))["", "forget"] == {0: 3.5 / 4, 10: 0.75 / 4}
    assert "1 of 3 facts are carried by no layer and have no depth" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no layer of the original model carries any of 3 facts"):
        measure(models, given, {"phrasings": 1})


@pytest.mark.parametrize(("platform", "device"), [("cpu", "cpu"), ("", "meta")])
def test_the_processor_is_used_where_it_was_chosen(platform, device, folder, monkeypatch):
    """Here an accelerator, which is a stand-in, could be used as well."""
    monkeypatch.setenv("VERL_PLATFORM", platform)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    model = forward.load_model(folder, torch.float32)
    assert model.device.type == device
    assert not model.training


def test_where_scoring_begins_and_ends():
    """BOS is not scored, and no end of a text or a turn is."""
    with_bos, without = byte_level(LLAMA3_TEMPLATE), byte_level(adds_bos=False)
    piece = text_piece(with_bos, "Who it")
    assert (piece.start, len(piece.ids), with_bos.decode(piece.ids[1:])) == (1, 3, "Who it")
    assert (text_piece(without, "Who it").start, len(text_piece(without, "Who it").ids)) == (1, 2)
    assert text_piece(sentencepiece(ends_with_eos=True), "Who it").ids[-1] != 2
    for raw in (False, True):
        prompt = PromptText(({"role": "user", "content": "Who?"},), raw=raw)
        piece = asked_piece(with_bos, prompt, "Ada wrote it")
        assert with_bos.decode(piece.ids[piece.start :]).strip() == "Ada wrote it"


def test_other_architectures():
    torch.manual_seed(0)
    piece, model = Piece([1, 2, 3, 4], 2, "text"), gpt2().double()
    read_of = float(lens(model, model, [piece])[0, -1])
    assert read_of == pytest.approx(float(mean_log_probs(model, [piece])), abs=1e-6)
    capped = gemma2(final_logit_softcapping=0.1)
    with pytest.raises(ValueError, match="Gemma2ForCausalLM changes its logits behind the output layer"):
        lens(capped, capped, [piece])


def test_models_of_other_sizes_and_texts_that_do_not_fit_are_refused(folder):
    model = plain_model(folder)
    for other in (llama(num_hidden_layers=3, hidden_size=32), llama()):
        for audit in (lens, drops):
            with pytest.raises(ValueError, match=r"one model has 2 layers of width 32, the other [23]"):
                audit(model, other, [Piece([1, 2, 3], 1, "text")])
    for wrong, message in (
        (Piece([1], 1, "text"), "text 0 has no token to score behind another one: 'text'"),
        (Piece([1, 2], 0, "text"), "text 0 has no token to score"),
        (Piece([1] * 2049, 1, "text"), "text 0 has 2049 tokens; the model takes 2048"),
    ):
        with pytest.raises(ValueError, match=message):
            states(model, [wrong])


# Membership inference.

SHOTS = 4


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


def test_every_score_is_that_of_transformers(attack, world, tmp_path):
    texts = world / "texts"
    members = {name: json.loads((texts / f"{name}.json").read_text()) for name in ("forget", "holdout")}
    named = ["--attacks", "membership", "membership_reference", "--budget", "full"]
    assert attack("--texts", f"{texts}", *named, muse=True) == 0
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
    "tokenizer", [byte_level(LLAMA3_TEMPLATE), byte_level(adds_bos=False), sentencepiece(ends_with_eos=True)]
)
def test_the_same_tokens_are_scored_behind_a_prefix(tokenizer):
    alone = text_piece(tokenizer, "Who wrote it")
    behind = behind_prefix(tokenizer, ["it", "Who it"], "Who wrote it")
    assert behind.ids[behind.start :] == alone.ids[alone.start :]
    text = tokenizer.decode(behind.ids, skip_special_tokens=True)
    assert text.split() == ["it", "Who", "it", "Who", "wrote", "it"]
    assert text.count("\n\n") == 2
    assert sum(token == tokenizer.bos_token_id for token in behind.ids) <= 1


def test_prefixes_are_as_long_as_the_context_allows(folder):
    """And texts of more positions than are computed at a time are scored whole."""
    model, tokenizer = plain_model(folder), AutoTokenizer.from_pretrained(folder)
    members = [f"Who wrote it? Ada{n} wrote it {n * 7}." for n in range(6)]
    others = [f"it wrote Who? {n * 5} it Bea{n} wrote." for n in range(6)]
    longest = max(len(text_piece(tokenizer, text).ids) for text in members + others)
    attack = membership.ATTACKS[0]
    for context, first in ((longest * 3 + 9, 2), (longest, None)):
        sets = {"forget": members, "retain": others}
        given = material([], tokenizer=tokenizer, context=context, texts=sets)
        found = scores(attack.measure(Models(model), given, attack.options("quick")))
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
