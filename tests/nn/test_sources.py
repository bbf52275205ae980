"""Attention over several sources."""

import pytest
import torch

from fusetk import trace
from fusetk.nn.attention import attend, attend_as_heads


@pytest.mark.parametrize("scale", [None, 1.0])
def test_several_sources_have_a_softmax_each(scale: float | None) -> None:
    """One product over all, and each source as a head, against one attention after the other."""
    q, (k, v) = torch.randn(2, 3, 4, 6), torch.randn(2, 2, 3, 5 * 7, 6)
    mask = torch.arange(7) < torch.tensor([[[[7]]], [[[4]]]])
    wanted = sum(attend(q, k[:, :, i : i + 7], v[:, :, i : i + 7], mask, 0.0, "", scale) for i in range(0, 35, 7))
    with trace.listen() as found:
        torch.testing.assert_close(attend(q, k, v, mask, 0.0, "cross", scale, sources=5), wanted)
    torch.testing.assert_close(attend(q, k, v, mask, 0.0, "", scale, sources=5), wanted)
    torch.testing.assert_close(attend_as_heads(q, k, v, mask, 0.0, scale, 5), wanted)
    [weights] = found["cross"]
    assert weights.shape == (2, 15, 4, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 15, 4))
    assert not weights[1, ..., 4:].any()
