"""Logit lens and patching, against the modules of a small Llama called one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from recipe.rerule.evaluation.attacks import uds
from recipe.rerule.evaluation.attacks.attack import Models
from recipe.rerule.evaluation.attacks.forward import (
    Piece,
    asked_piece,
    mean_log_probs,
    states,
    text_piece,
)
from recipe.rerule.evaluation.attacks.logit_lens import lens
from recipe.rerule.evaluation.attacks.uds import depth_scores, drops
from recipe.rerule.evaluation.engine.requests import PromptText
from tests.evaluation.attacks.made import material, near, pieces, probe, scores
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.unlearning.made import plain_model, put_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_model(tmp_path_factory.mktemp("models") / "model")


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
def test_states_lens_and_patching_against_layers_called_one_by_one(folder: Path) -> None:
    """States are those before the final norm; the lens reads one model with the head of another."""
    original, source = near(folder, 0), near(folder, 1)
    made = pieces(AutoTokenizer.from_pretrained(folder))
    found = {size: states(source, made, size) for size in (1, 3)}
    read_of, dropped = lens(original, source, made), drops(original, source, made, batch_size=3)
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
    assert lens(original, source, []).numel() == 0


def test_depth_by_hand() -> None:
    """Weights 1 and 3: (1 * 0.5 + 3 * 1) / 4; a drop below 0 counts 0, and the third layer does not carry."""
    never_knew = torch.tensor([[1.0, 3.0, 0.05], [1.0, 3.0, 0.0], [0.01, 0.05, -1.0]], dtype=torch.float64)
    unlearned = torch.tensor([[0.5, 4.0, 9.0], [-2.0, 0.75, 9.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    found = depth_scores(never_knew, unlearned)
    assert found[:2] == pytest.approx((3.5 / 4, 0.75 / 4), abs=1e-12)
    assert found[2] is None


def test_facts_without_depth_are_counted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second fact is carried by layer 1; what the states of the attacked model do counts by D2 / D1."""
    model, given = plain_model(folder), material([probe(n) for n in range(4)])
    models = Models(model, lambda: model, lambda: model)
    carried = torch.tensor([[0.0, n % 2 * 2.0] for n in range(4)], dtype=torch.float64)
    returned = iter([carried, carried / 4, 0 * carried, carried])
    monkeypatch.setattr(uds, "drops", lambda original, source, pieces: next(returned))
    (attack,) = uds.ATTACKS
    assert attack.measure is not None
    assert scores(attack.measure(models, given, {"phrasings": 1}))["", "forget"] == {10: 0.25, 30: 0.25}
    assert "2 of 4 facts are carried by no layer and have no depth" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no layer of the original model carries any of 4 facts"):
        attack.measure(models, given, {"phrasings": 1})


def test_where_scoring_begins_and_ends() -> None:
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


def tiny(**changes: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    return sizes | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8} | changes


def test_other_architectures() -> None:
    torch.manual_seed(0)
    piece = Piece([1, 2, 3, 4], 2, "text")
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2)).double()
    assert lens(gpt2, gpt2, [piece])[0, -1] == pytest.approx(float(mean_log_probs(gpt2, [piece])), abs=1e-6)
    capped = Gemma2ForCausalLM(Gemma2Config(**tiny(final_logit_softcapping=0.1)))
    with pytest.raises(ValueError, match="Gemma2ForCausalLM changes its logits behind the output layer"):
        lens(capped, capped, [piece])


def test_models_of_other_sizes_and_texts_that_do_not_fit_are_refused(folder: Path) -> None:
    model = plain_model(folder)
    for changes in ({"num_hidden_layers": 3, "hidden_size": 32}, {"hidden_size": 24, "head_dim": 12}):
        other = LlamaForCausalLM(LlamaConfig(**tiny(**changes)))
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
