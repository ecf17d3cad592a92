"""Log-probs in chunks against log_softmax in float64: values, gradients, dtypes, memory."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from verl.utils import torch_functional

from recipe.rerule.platform import log_probs, sdpa
from recipe.rerule.platform.log_probs import label_log_probs


def by_log_softmax(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(-1).gather(-1, labels[..., None])[..., 0]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(2, 7), st.integers(1, 200), st.integers(0, 2**31))
def test_values_and_gradient_are_those_of_log_softmax(rows: int, width: int, chunk: int, seed: int) -> None:
    """Whatever the chunks: of one row, of several, the last one shorter."""
    generator = torch.Generator().manual_seed(seed)
    logits = (10 * torch.randn(rows, width, generator=generator, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(width, (rows,), generator=generator)
    factors = torch.randn(rows, generator=generator, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_probs, "CHUNK_BYTES", chunk)
        found = label_log_probs(logits, labels)
        (gradient,) = torch.autograd.grad((factors * found).sum(), logits)
    expected = by_log_softmax(logits, labels)
    (expected_gradient,) = torch.autograd.grad((factors * expected).sum(), logits)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def test_bfloat16_logits_give_float32_log_probs_and_a_bfloat16_gradient() -> None:
    """The error is that of rounding to float32, far below bfloat16's step of 0.03 at these values."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(2, 50, 1000)).bfloat16().requires_grad_()
    labels = torch.randint(1000, (2, 50))
    before = logits.detach().clone()
    found = label_log_probs(logits, labels)
    assert (found.dtype, found.shape) == (torch.float32, (2, 50))
    expected = by_log_softmax(logits.detach(), labels)
    assert expected.abs().max() > 8
    torch.testing.assert_close(found.detach().double(), expected, rtol=0, atol=1e-5)
    found.sum().backward()
    assert torch.equal(logits, before)
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
    one_hot = torch.nn.functional.one_hot(labels, 1000)
    exact = one_hot - logits.detach().double().softmax(-1)
    torch.testing.assert_close(logits.grad.double(), exact, rtol=2**-8, atol=1e-6)


def test_verls_log_probs_of_labels_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", None)  # put back after the test
    sdpa.install()
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 11, dtype=torch.float64) * 5, torch.randint(0, 11, (2, 3))
    found = torch_functional.logprobs_from_logits(logits, labels)
    torch.testing.assert_close(found, by_log_softmax(logits, labels))


class NewStorages(TorchDispatchMode):
    """Bytes of every storage that an operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given_storages = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if torch.is_tensor(t)}
        found = func(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(found)):
            if tensor.untyped_storage().data_ptr() not in given_storages:
                self.sizes.append(tensor.untyped_storage().nbytes())
        return found


def test_no_float32_copy_of_all_logits_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest new tensor is a chunk forward, and the bfloat16 gradient backward."""
    chunk = 4 * 4096 * 4
    monkeypatch.setattr(log_probs, "CHUNK_BYTES", chunk)
    logits = torch.zeros(64, 4096, dtype=torch.bfloat16).requires_grad_()
    with NewStorages() as forward:
        found = label_log_probs(logits, torch.zeros(64, dtype=torch.int64))
    with NewStorages() as backward:
        found.sum().backward()
    assert max(forward.sizes) == chunk
    assert max(backward.sizes) == 64 * 4096 * 2
