"""Which positions of packed rows count, worked out by hand."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import SFTTensorCollator

from recipe.rerule.unlearning import batch
from recipe.rerule.unlearning.method import SIDES

# A question and its answer of two tokens, a text, and a row to keep, packed: positions 0-3, 4-6 and 7-8.
ROWS = [("forget", [0, 0, 1, 1]), ("forget", [0, 1, 1]), ("retain", [0, 1])]


def packed() -> TensorDict:
    rows = [
        {
            "input_ids": torch.arange(len(mask)),
            "loss_mask": torch.tensor(mask),
            "side": torch.tensor([SIDES.index(side)]),
        }
        for side, mask in ROWS
    ]
    return tu.get_tensordict(tensor_dict=SFTTensorCollator("no_padding")(rows), non_tensor_dict={})


def test_a_position_counts_where_the_next_token_of_its_own_row_is_learnt() -> None:
    """So a row's last position counts nowhere, be the next row a text or not."""
    micro = batch.MicroBatch(packed())
    assert micro.rows("forget").tolist() == [0, 1]
    assert micro.rows("forget", "retain").tolist() == [0, 1, 2]
    assert micro.positions("forget", answers_alone=True).tolist() == [1, 2, 4, 5]
    assert micro.positions("forget", answers_alone=False).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert micro.positions("retain", answers_alone=True).tolist() == [7]
    assert micro.positions("alternate", answers_alone=False).tolist() == []


def test_sums_and_means_of_answers() -> None:
    log_probs = torch.tensor([9.0, -1.0, -2.0, 9.0, -3.0, -0.5, 9.0, -4.0, 9.0])
    answers = batch.MicroBatch(packed()).answers(log_probs, "forget")
    assert answers.log_probs.tolist() == [-3.0, -3.5]
    assert answers.lengths.tolist() == [2, 2]
    expected = [log_probs[[1, 2]].exp().mean(), log_probs[[4, 5]].exp().mean()]
    torch.testing.assert_close(answers.probabilities, torch.stack(expected))


def test_values_of_some_rows_are_put_where_they_stand() -> None:
    micro = batch.MicroBatch(packed())
    found = micro.scattered(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), torch.tensor([0, 2]))
    assert found.tolist() == [1, 2, 3, 4, 0, 0, 0, 5, 6]


def test_what_the_terms_are_averaged_over() -> None:
    expected = {"tokens_forget": 4, "tokens_alternate": 0, "tokens_retain": 1}
    assert batch.counts(packed(), "all") == expected | {"kl_positions": 2}
    assert batch.counts(packed(), "answer") == expected | {"kl_positions": 1}
