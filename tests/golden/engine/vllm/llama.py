"""The forward pass of a small Llama in float64, and its greedy and sampled responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from vllm.sampling_params import SamplingParams
from vllm.tokens import Tokens, cut

Array = Any


class Llama:
    """A folder of transformers with a Llama in float32."""

    def __init__(self, folder: Path) -> None:
        self._config = json.loads((folder / "config.json").read_text())
        self._tokens = Tokens(folder)
        self._weights = {}
        for file in sorted(folder.glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                self._weights[name] = tensor.astype(np.float64)

    def texts(self, ids: Sequence[int], parameters: SamplingParams) -> list[str]:
        """One response, or `n` samples, each with random numbers of its own."""
        noise = [np.random.default_rng(parameters.seed + place) for place in range(parameters.n)]
        written = np.array([list(ids)] * parameters.n)
        ended = np.zeros(parameters.n, dtype=bool)
        while written.shape[1] < len(ids) + parameters.max_tokens and not ended.all():
            logits = self._logits(written)[:, -1]
            if parameters.temperature:
                # A draw by Gumbel noise: exact, and of one random number a token of the vocabulary.
                drawn = [rng.gumbel(size=logits.shape[1]) for rng in noise]
                logits = logits / parameters.temperature + np.array(drawn)
            written = np.concatenate([written, logits.argmax(-1)[:, None]], 1)
            ended |= np.isin(written[:, -1], list(self._tokens.ends))
        return [cut(self._text(row[len(ids) :].tolist()), parameters.stop) for row in written]

    def measured(self, ids: Sequence[int]) -> list[tuple[float, int] | None]:
        """Log-prob and rank of each token behind those before it."""
        log_probs = _log_softmax(self._logits(np.array([list(ids)]))[0, :-1])
        own = log_probs[np.arange(len(ids) - 1), ids[1:]]
        ranks = (log_probs >= own[:, None]).sum(-1)
        return [None, *zip(own.tolist(), ranks.tolist(), strict=True)]

    def _text(self, ids: list[int]) -> str:
        """The tokens before the first that ends a response."""
        ends = [place for place, token in enumerate(ids) if token in self._tokens.ends]
        return self._tokens.text(ids[: ends[0]] if ends else ids)

    def _logits(self, ids: Array) -> Array:
        """Of the next token behind each of the tokens [rows, T]: [rows, T, V]."""
        state = self._weights["model.embed_tokens.weight"][ids]
        for layer in range(self._config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            state = state + self._attention(layer, self._norm(state, f"{name}.input_layernorm"))
            state = state + self._mlp(layer, self._norm(state, f"{name}.post_attention_layernorm"))
        return self._norm(state, "model.norm") @ self._weights["lm_head.weight"].T

    def _norm(self, state: Array, name: str) -> Array:
        squares = (state**2).mean(-1, keepdims=True) + self._config["rms_norm_eps"]
        return state / np.sqrt(squares) * self._weights[f"{name}.weight"]

    def _attention(self, layer: int, state: Array) -> Array:
        heads, (rows, length) = self._config["num_attention_heads"], state.shape[:2]
        query, key, value = (
            (state @ self._projection(layer, f"self_attn.{name}_proj"))
            .reshape(rows, length, heads, -1)
            .transpose(0, 2, 1, 3)
            for name in "qkv"
        )
        query, key = _rotated(query), _rotated(key)
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(query.shape[-1])
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        mixed = (np.exp(_log_softmax(scores)) @ value).transpose(0, 2, 1, 3)
        return mixed.reshape(rows, length, -1) @ self._projection(layer, "self_attn.o_proj")

    def _mlp(self, layer: int, state: Array) -> Array:
        gate = state @ self._projection(layer, "mlp.gate_proj")
        raised = state @ self._projection(layer, "mlp.up_proj")
        return (gate / (1 + np.exp(-gate)) * raised) @ self._projection(layer, "mlp.down_proj")

    def _projection(self, layer: int, name: str) -> Array:
        return self._weights[f"model.layers.{layer}.{name}.weight"].T


def _rotated(states: Array, theta: float = 10_000.0) -> Array:
    """Rotary positions, transformers' default."""
    half = states.shape[-1] // 2
    angles = np.arange(states.shape[-2])[:, None] * theta ** (-np.arange(half) / half)
    cosine, sine = (np.concatenate([part, part], -1) for part in (np.cos(angles), np.sin(angles)))
    turned = np.concatenate([-states[..., half:], states[..., :half]], -1)
    return states * cosine + turned * sine


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
