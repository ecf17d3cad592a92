"""Our attention in place of transformers', until the end of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from recipe.rerule.platform import attention


@pytest.fixture
def install() -> Iterator[Callable[[], None]]:
    """Call it when what transformers gives has been computed."""
    yield attention.install
    AttentionInterface.register("sdpa", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa", sdpa_mask)
