"""The models of the stand-in: a small Llama in float64, and one that answers from a file."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from vllm.sampling_params import SamplingParams

Array = Any
CONTEXT = 3
"""Tokens before a token that its log-prob depends on, of a model that answers from a file."""


class Tokens:
    """A model folder's tokenizer, without transformers; `ends` are the tokens that end a response."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        end = settings["eos_token"]
        self.ends = {self._tokenizer.token_to_id(end["content"] if isinstance(end, dict) else end)}

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special)


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the strings that end a response."""
    return min((text.split(stop)[0] for stop in stops if stop in text), key=len, default=text)


class Llama:
    """A folder of transformers with a Llama in float32: its forward pass, greedy and sampled responses."""

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


class Scripted:
    """A folder with answers.json and a tokenizer; log-probs are numbers drawn from the tokens alone.

    answers.json: {"salt": text, "scale": number, "answers": [[part of a prompt, [answer, ...]], ...]}. Of the
    parts that a prompt holds, the one that ends last counts, the longer of two; sample i is the i-th answer
    after the seed, and a greedy response the first one. A prompt without any of them gets an empty answer.
    """

    def __init__(self, folder: Path) -> None:
        said = json.loads((folder / "answers.json").read_text())
        self._salt, self._scale, self._answers = said["salt"], said["scale"], said["answers"]
        self._tokens = Tokens(folder)

    def texts(self, ids: Sequence[int], parameters: SamplingParams) -> list[str]:
        answers = self._answers_to(self._tokens.text(ids, special=True))
        first = parameters.seed if parameters.temperature else 0
        chosen = [answers[(first + place) % len(answers)] for place in range(parameters.n)]
        return [cut(self._shortened(text, parameters.max_tokens), parameters.stop) for text in chosen]

    def measured(self, ids: Sequence[int]) -> list[tuple[float, int] | None]:
        """Log-prob and rank of each token behind those before it."""
        return [
            None,
            *(self._measured(ids[max(0, place - CONTEXT) : place + 1]) for place in range(1, len(ids))),
        ]

    def _answers_to(self, prompt: str) -> list[str]:
        found = [
            (prompt.rfind(part) + len(part), len(part), answers)
            for part, answers in self._answers
            if part in prompt
        ]
        return max(found, key=lambda one: one[:2])[2] if found else [""]

    def _shortened(self, text: str, most: int) -> str:
        ids = self._tokens.ids(text)
        return text if len(ids) <= most else self._tokens.text(ids[:most])

    def _measured(self, ids: Sequence[int]) -> tuple[float, int]:
        digest = hashlib.sha256(json.dumps([self._salt, list(ids)]).encode()).digest()
        share = int.from_bytes(digest[:6], "big") / 2**48
        return -self._scale * share, 1 + int(3 * share)
