"""Makes an untrained model of about 2 M parameters for prepared rows, to try a run script without weights.

    python examples/small_model.py --data DATA_FOLDER --out MODEL_FOLDER

Its tokenizer is trained on the rows. Where the rows are raw, it has no chat template and puts a
beginning-of-text token first, as a base model's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from data_prep.contract import Row, read_rows, read_sft_rows
from data_prep.world.config import WorldConfig
from data_prep.world.model import make_model
from data_prep.world.tokenizer import train_tokenizer
from recipe.rerule.io import new_folder


def main() -> None:
    """Make the model that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a folder that data_prep made")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    options = parser.parse_args()
    rows = read_rows(options.data / "train.parquet") + read_rows(options.data / "probes.parquet")
    config = WorldConfig(vocab_size=2048)
    tokenizer = train_tokenizer(_texts(rows, read_sft_rows(options.data / "sft.parquet")), config.vocab_size)
    if any(row["extra_info"]["raw"] for row in rows):
        make_base(tokenizer)
    with new_folder(options.out, overwrite=False) as folder:
        make_model(config, tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def make_base(tokenizer: PreTrainedTokenizerFast) -> None:
    """Take the chat template away and let the tokenizer put its beginning-of-text token first."""
    tokenizer.chat_template = None
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_token_id)]
    )


def _texts(rows: list[Row], refusals: list[Row]) -> list[str]:
    prompts = [message["content"] for row in rows for message in row["prompt"]]
    golds = [gold for row in rows for gold in row["reward_model"]["ground_truth"]["golds"]]
    return prompts + golds + [message["content"] for row in refusals for message in row["messages"]]


if __name__ == "__main__":
    main()
