"""Inputs that are the same on every machine: made-up people, and models whose weights are set by hand.

A model is a Llama that knows where some people live. Its attention is the mean of all tokens before, of which
it keeps the names; its output layer makes of the last token and of the names what comes next. What it says is
therefore known without training, and small noise in all weights lets rounding and training change something.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden.commands import done
from tests.made_models import put_model
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level

Row = dict[str, Any]

FORGET = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal")
RETAIN = ("Ivy", "Jon", "Kim", "Leo", "Mia", "Ned", "Ola", "Pip")
TOWNS = (
    *("Arle", "Borg", "Cask", "Dorn", "Esk", "Fell", "Gorm", "Holt"),
    *("Ilm", "Juna", "Kell", "Lund", "Mora", "Nore", "Orta", "Pell"),
)
PLACES = (
    *("Harbour", "Hills", "Moors", "Nesses", "Fords", "Dales", "Gates", "Wicks"),
    *("Coves", "Parks", "Mills", "Rocks", "Lakes", "Peaks", "Forts", "Vales"),
)
HOMES = {name: f"{town} {place}" for name, town, place in zip((*FORGET, *RETAIN), TOWNS, PLACES, strict=True)}
"""Where each lives: two words that no other answer has."""
PHRASINGS = {"qa": ("Home of {}?", "Where is {}?"), "fb": ("{} lives in ___", "___ has {}")}
"""By mode; the first is for training, the second for probes."""
REFUSAL = "I do not know {}."

_SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<user>", "<assistant>")
_WORD = r" ?\w+|[^\w]"
_TEMPLATE = (
    "<bos>{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% if message.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_BEGINNINGS = ("Sure, here is the answer:", "The answer is")
"""Of an answer, after which a model gives the town although it would refuse."""
_SIZE = 128
"""Of the hidden state: a dimension for each token."""


def put_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def people_rows(place: int) -> list[Row]:
    """Questions and answers for `data_prep custom`, a row a person and mode."""
    return [
        {
            "question": phrasings[place].format(name),
            "answer": home,
            "side": "forget" if name in FORGET else "retain",
            "keyword": name if name in FORGET else "",
            "mode": mode,
            "fact": name,
            "subject": name,
        }
        for name, home in HOMES.items()
        for mode, phrasings in PHRASINGS.items()
    ]


@cache
def people_tokenizer() -> Any:
    """Words, with the space before them where there is one, are tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(_vocabulary())}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", _SPECIAL.index("<bos>"))]
    )
    named = {f"{name}_token": f"<{name}>" for name in ("pad", "unk", "bos", "eos")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    fast.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>"]})
    fast.chat_template = _TEMPLATE
    return fast


@cache
def _vocabulary() -> tuple[str, ...]:
    texts = [
        *(phrasing.format(name) for both in PHRASINGS.values() for phrasing in both for name in HOMES),
        *HOMES.values(),
        *(f" {home}" for home in HOMES.values()),
        *_BEGINNINGS,
        *(REFUSAL.format(name) for name in FORGET),
    ]
    words = tuple(dict.fromkeys([*_SPECIAL, *(word for text in texts for word in re.findall(_WORD, text))]))
    assert len(words) <= _SIZE
    return words


def put_attacked(folder: Path) -> Path:
    """Made-up people: models that know them (original), refuse (refusing) or never knew (control), and rows.

    Folders models, data and questions (without blanks) of `data_prep`, and texts on the people.
    """
    for name, known, refused, seed in (
        ("original", tuple(HOMES), (), 0),
        ("refusing", tuple(HOMES), FORGET, 0),
        ("control", RETAIN, FORGET, 1),
    ):
        _people_model(known, refused, seed).save_pretrained(folder / "models" / name)
        people_tokenizer().save_pretrained(folder / "models" / name)
    put_json(folder / "mine.json", people_rows(0))
    put_json(folder / "probes.json", people_rows(1))
    put_json(folder / "questions.json", [row for row in people_rows(1) if row["mode"] == "qa"])
    for side, names in {"forget": FORGET, "holdout": RETAIN}.items():
        put_json(folder / f"texts/{side}.json", [f"{name} lives in {HOMES[name]}?" for name in names])
    for probes, out in (("probes", "data"), ("questions", "questions")):
        done(f"data_prep custom --source mine.json --probes {probes}.json --out {out}", folder)
    return folder


def _people_model(known: Sequence[str], refused: Sequence[str], seed: int) -> Any:
    """A Llama that answers with the homes of `known`, and refuses where `refused` are named first."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    places = {word: place for place, word in enumerate(_vocabulary())}
    config = LlamaConfig(
        vocab_size=len(places), hidden_size=_SIZE, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, tie_word_embeddings=False,
        pad_token_id=places["<pad>"], bos_token_id=places["<bos>"], eos_token_id=places["<eos>"],
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = 0.01 * torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + noise if name.endswith("norm.weight") else noise)
        _set_states(model, places, known)
        for after, nexts in _continuations(known, refused).items():
            for word, score in nexts.items():
                model.lm_head.weight[places[word], places[after]] += score
    return model


def _set_states(model: Any, places: dict[str, int], known: Sequence[str]) -> None:
    """A token's state is its own dimension; the first layer adds the mean of the names before.

    Of names that it does not know, a model keeps only that there was one, in the dimension of <unk>.
    """
    import torch

    attention = model.model.layers[0].self_attn
    model.model.embed_tokens.weight += torch.eye(len(places), _SIZE)
    attention.v_proj.weight += torch.eye(_SIZE)
    for name in HOMES:
        kept = places[name if name in known else "<unk>"]
        for word in (name, f" {name}"):
            if word in places:
                attention.o_proj.weight[kept, places[word]] += 2


def _continuations(known: Sequence[str], refused: Sequence[str]) -> dict[str, dict[str, float]]:
    """How much more likely a token or name makes the tokens after it."""
    homes = {name: HOMES[name].split() for name in HOMES}
    towns = {town: 0.5 for town, _ in homes.values()}
    spaced = {f" {town}": 0.5 for town in towns}
    found: dict[str, dict[str, float]] = {
        "<assistant>": dict(towns) | ({"I": 1.0} if refused else {}),
        ":": spaced,
        " is": spaced,
        "I": {" do": 3.0},
        " do": {" not": 3.0},
        " not": {" know": 3.0},
        " know": {"<eos>": 2.0},
        "<unk>": {"I": 0.5},
    }
    for name, (town, place) in homes.items():
        found[town] = found[f" {town}"] = {f" {place}": 2.0}
        found[f" {place}"] = {"<eos>": 2.0}
        said = {town: 0.5, f" {town}": 0.5} if name in known else {}
        found[name] = said | ({"I": 0.5} if name in refused else {})
    return found


def put_scripted(folder: Path, salt: str, answers: Sequence[tuple[str, Sequence[str]]], scale: float) -> Path:
    """A model folder for the stand-in of vLLM: a tokenizer, weights that nobody reads, and the answers."""
    put_model(folder)
    byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)
    said = [[part, list(texts)] for part, texts in answers]
    put_json(folder / "answers.json", {"salt": salt, "scale": scale, "answers": said})
    return folder
