from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from recipe.rerule.reporting.tokens import row_lengths, token_use, tokenizer_of
from recipe.rerule.runs.history import Prompt, Visit
from tests.evaluation.conftest import make_probe, write_probes
from tests.report.made import run_of


def save_tokenizer(folder: Path) -> None:
    """One token a word."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def run_on(folder: Path, *indices: int):
    prompts = {index: Prompt(index, "forget", "qa", "Ada", (Visit(1, 0.5),)) for index in indices}
    run = run_of("mine", [{}], folder=folder)
    return type(run)(run.name, run.steps, run.metrics, prompts, folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        make_probe(0, "forget", "qa", ["one two"], messages=[{"role": "user", "content": "a b c"}]),
        make_probe(1, "forget", "qa", ["one", "not counted"], messages=[{"role": "user", "content": "a"}]),
        make_probe(2, "retain", "qa", ["one"], messages=[{"role": "user", "content": "a b"}]),
    ]
    (tmp_path / "data").mkdir()
    write_probes(tmp_path / "data" / "train.parquet", rows)
    return tmp_path / "data"


def test_used_rows_count_once_against_all_rows_of_their_side(tmp_path, data):
    save_tokenizer(tmp_path / "run" / "global_step_3" / "actor" / "huggingface")
    use = token_use(run_on(tmp_path / "run", 0, 2), data)
    assert (use["forget"].used, use["forget"].available) == (5, 7)
    assert use["forget"].share == pytest.approx(5 / 7)
    assert (use["retain"].used, use["retain"].available) == (3, 3)


def test_a_run_on_other_rows_is_refused(tmp_path, data):
    save_tokenizer(tmp_path / "run" / "global_step_3" / "actor" / "huggingface")
    with pytest.raises(ValueError, match=r"trained on prompt 9, which .*train.parquet lacks"):
        token_use(run_on(tmp_path / "run", 0, 9), data)


def test_the_model_it_started_from_has_the_tokenizer_where_no_checkpoint_has(tmp_path):
    save_tokenizer(tmp_path / "stage1")
    config = {"actor_rollout_ref": {"model": {"path": f"{tmp_path / 'stage1'}"}}}
    assert tokenizer_of(run_of("a", [{}], folder=tmp_path, config=config))(["x y z"]) == [3]


def test_without_a_tokenizer_the_error_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"run a: no tokenizer in .*leave --data out"):
        tokenizer_of(run_of("a", [{}], folder=tmp_path))


def test_row_lengths_add_prompt_and_first_gold():
    row = {
        "prompt": [{"content": "ab"}, {"content": "c"}],
        "reward_model": {"ground_truth": {"golds": ["de", "f"]}},
    }
    assert row_lengths([row, row], lambda texts: [len(text) for text in texts]) == [5, 5]
