"""Untrained models of about 0.1 M parameters of the families that users have, with tokenizers of their kind.

The configuration classes are those of transformers. A head has 32 dimensions, which vLLM's attention on a
processor takes. Weights are larger than models begin with, so that what is done to attention scores shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.families import templates

VOCABULARY = 400
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512, "initializer_range": 0.1,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What makes a family.

    Attributes:
        name: as its users call it.
        config: class of its configuration in transformers.
        template: its chat template.
        bos, eos, pad: special tokens of the tokenizer; None where it has none.
        end: the token that ends a turn of the assistant.
        marks: further special tokens.
        words: further tokens that are text.
        adds_bos: the tokenizer puts BOS before a text, as it is without the template.
        settings: of the configuration, beyond the shape.
        arguments: `data.apply_chat_template_kwargs` that a user of this family sets.
        no_system: the template raises where a system message is given.
        rewrites: the template writes a system message in another place once an answer follows.
        alternates: turns must alternate.
    """

    name: str
    config: str
    template: str
    eos: str
    end: str
    bos: str | None = None
    pad: str | None = None
    marks: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    adds_bos: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    no_system: bool = False
    alternates: bool = False
    rewrites: bool = False

    @property
    def special(self) -> list[str]:
        named = (self.pad, self.bos, self.eos, self.end, *self.marks)
        return list(dict.fromkeys(token for token in named if token is not None))


_TIED = {"tie_word_embeddings": True}
_LLAMA_3: dict[str, Any] = {
    **{"config": "LlamaConfig", "bos": "<|begin_of_text|>", "eos": "<|eot_id|>", "end": "<|eot_id|>"},
    **{"pad": "<|finetune_right_pad_id|>", "adds_bos": True},
    "marks": ("<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
}
_LLAMA_2: dict[str, Any] = {"bos": "<s>", "eos": "</s>", "end": "</s>", "adds_bos": True, "alternates": True}
_QWEN: dict[str, Any] = {
    **{"eos": "<|im_end|>", "end": "<|im_end|>", "pad": "<|endoftext|>"},
    **{"marks": ("<|im_start|>",), "settings": _TIED},
}
_GEMMA: dict[str, Any] = {
    **{"bos": "<bos>", "eos": "<eos>", "pad": "<pad>", "end": "<end_of_turn>", "marks": ("<start_of_turn>",)},
    **{"adds_bos": True, "alternates": True},
}
_OF_GEMMA = {"query_pre_attn_scalar": 32, **_TIED}
_CAPPED = _OF_GEMMA | {"attn_logit_softcapping": 0.5}
"""A low cap, so that attention without it gives other numbers."""
_DATE, _NO_THOUGHTS = {"date_string": "26 Jul 2024"}, {"enable_thinking": False}
_THOUGHTS = ("<think>", "</think>")

_ALL = (
    Family("Gemma-2", "Gemma2Config", templates.GEMMA_2, **_GEMMA, settings=_CAPPED, no_system=True),
    Family("Qwen2.5", "Qwen2Config", templates.QWEN_2_5, **_QWEN),
    Family("Llama-3.2", template=templates.LLAMA_3_2, **_LLAMA_3, settings=_TIED, arguments=_DATE),
    Family("Llama-2", "LlamaConfig", templates.LLAMA_2, **_LLAMA_2),
    Family(
        "Mistral",
        "MistralConfig",
        templates.MISTRAL,
        **_LLAMA_2,
        marks=("[INST]", "[/INST]"),
        settings={"sliding_window": None},
        rewrites=True,
    ),
    Family("Qwen3", "Qwen3Config", templates.QWEN_3, **_QWEN, words=_THOUGHTS, arguments=_NO_THOUGHTS),
    Family("Gemma-3", "Gemma3TextConfig", templates.GEMMA_3, **_GEMMA, settings=_OF_GEMMA),
    Family(
        "Phi-3",
        "Phi3Config",
        templates.PHI_3,
        **{"bos": "<s>", "eos": "<|endoftext|>", "pad": "<|endoftext|>", "end": "<|end|>"},
        marks=("<|system|>", "<|user|>", "<|assistant|>"),
    ),
    Family(
        "OLMo-2",
        "Olmo2Config",
        templates.OLMO_2,
        **{"bos": "<|endoftext|>", "eos": "<|endoftext|>", "pad": "<|pad|>", "end": "<|endoftext|>"},
    ),
)
FAMILIES = {family.name: family for family in _ALL}
LLAMA_3_1 = Family("Llama-3.1", template=templates.LLAMA_3_1, **_LLAMA_3)
"""Whose template writes a date that does not change; trained like Llama-3.2."""


def tokenizer_of(family: Family, texts: Iterable[str]) -> Any:
    """A byte-level tokenizer of at most VOCABULARY entries and the words, trained on `texts`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=family.special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([AddedToken(word, special=False) for word in family.words])
    if family.adds_bos:
        single = f"{family.bos} $A"
        known = [(family.bos, family.special.index(str(family.bos)))]
        bpe.post_processor = processors.TemplateProcessing(single=single, special_tokens=known)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=family.bos,
        eos_token=family.eos,
        pad_token=family.pad,
        additional_special_tokens=[token for token in family.special if token in (family.end, *family.marks)],
        chat_template=family.template,
        clean_up_tokenization_spaces=False,
    )


def save(family: Family, folder: Path, texts: Iterable[str]) -> Path:
    """A Hugging Face folder of the family's tokenizer and model, whose random weights are always the same."""
    import torch
    import transformers

    tokenizer = tokenizer_of(family, texts)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    kind = getattr(transformers, family.config)
    config = kind(vocab_size=len(tokenizer), **ids, **SHAPE, **family.settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    ends = dict.fromkeys((tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(family.end)))
    model.generation_config.eos_token_id = list(ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
