"""Tokenizers of the kinds that models come with, made from a few merges: their tokens are known by hand.

In all of them "Who", "wrote" and "it" are one token each, with or without a space before; everything else is
single characters or, where there is none, bytes.
"""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ("Who", "wrote", "it")
LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|head|>{{ message.role }}<|body|>\n\n"
    "{{ message.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|>\n\n{% endif %}"
)
CHATML_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|head|>system\nBe brief.<|eot|>\n{% endif %}"
    "{% for message in messages %}<|head|>{{ message.role }}\n{{ message.content }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant\n{% endif %}"
)
ALTERNATING_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role != ('user', 'assistant')[loop.index0 % 2] %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}"
    "{% if message.role == 'user' %}{{ bos_token }}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }} {{ eos_token }}{% endif %}{% endfor %}"
)


def sentencepiece(
    prepend: str = "first", template: str | None = None, ends_with_eos: bool = False
) -> PreTrainedTokenizerFast:
    """Like Llama-2's: spaces are "▁", one is put before a text, unknown characters are bytes, BOS before all.

    `prepend` is the scheme of that space: "first" for the beginning of the text alone, "always" for the
    beginning of each part between special tokens.
    """
    characters = ["▁", *string.ascii_letters, *string.digits, *string.punctuation]
    alphabet = [*(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    tokenizer = _bpe(["<unk>", "<s>", "</s>"], alphabet, _words("▁"), "<unk>")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if ends_with_eos else "<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=template,
    )


def byte_level(template: str | None = None, adds_bos: bool = True) -> PreTrainedTokenizerFast:
    """Like Llama-3's (or, without BOS, Qwen's): bytes as characters, words split off before, a space is "Ġ".

    Two newlines ("ĊĊ") are one token.
    """
    special = ["<|begin|>", "<|end|>", "<|head|>", "<|body|>", "<|eot|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = _bpe(special, alphabet, [*_words("Ġ"), ("Ċ", "Ċ")], None)
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        additional_special_tokens=special[2:],
        chat_template=template,
    )


def _bpe(
    special: list[str], alphabet: list[str], merges: list[tuple[str, str]], unknown: str | None
) -> Tokenizer:
    entries = [*special, *alphabet, *(left + right for left, right in merges)]
    ids = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    bpe = models.BPE(vocab=ids, merges=merges, unk_token=unknown, byte_fallback=unknown is not None)
    tokenizer = Tokenizer(bpe)
    tokenizer.add_special_tokens(special)
    return tokenizer


def _words(space: str) -> list[tuple[str, str]]:
    """Merges of the characters of each of WORDS from left to right, and then of a space before it."""
    inside = [(word[:end], word[end]) for word in WORDS for end in range(1, len(word))]
    return [*inside, *((space, word) for word in WORDS)]
