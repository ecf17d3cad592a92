"""Models of random weights whose tokens are characters, so that equal texts are equal tokens."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

SPECIAL = ("<pad>", "<bos>", "<eos>", "<user>", "<assistant>")
CHARACTERS = string.ascii_letters + string.digits + " ?.,\n"
TEMPLATE = (
    "<bos>{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% if message.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def character_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>"]})
    fast.chat_template = TEMPLATE
    return fast


def save_model(folder: Path, seed: int, layers: int) -> Path:
    """A Llama of about 0.2 M random parameters that never writes a special token but the end of sequence.

    Newlines come often, so that responses to raw prompts end at them.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    tokenizer = character_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[[0, 1, 3, 4]] = 0.0
        model.lm_head.weight[-1] *= 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
