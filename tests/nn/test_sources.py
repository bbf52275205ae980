"""Attention over several sources."""

from contextlib import nullcontext

import pytest
import torch

from fusetk import trace
from fusetk.nn.attention import CrossAttention, SelfAttention, attend, attend_as_heads
from fusetk.nn.cache import Cache


@pytest.mark.parametrize("scale", [None, 1.0])
def test_several_sources_have_a_softmax_each(scale: float | None) -> None:
    """One product over all, and each source as a head, against one attention after the other."""
    q, (k, v) = torch.randn(2, 3, 4, 6), torch.randn(2, 2, 3, 5 * 7, 6)
    mask = torch.arange(7) < torch.tensor([[[[7]]], [[[4]]]])
    wanted = sum(
        attend(q, k[:, :, i : i + 7], v[:, :, i : i + 7], mask, 0.0, "", scale)
        for i in range(0, 35, 7)
    )
    with trace.listen() as found:
        torch.testing.assert_close(attend(q, k, v, mask, 0.0, "cross", scale, sources=5), wanted)
    torch.testing.assert_close(attend(q, k, v, mask, 0.0, "", scale, sources=5), wanted)
    torch.testing.assert_close(attend_as_heads(q, k, v, mask, 0.0, scale, 5), wanted)
    [weights] = found["cross"]
    assert weights.shape == (2, 15, 4, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 15, 4))
    assert not weights[1, ..., 4:].any()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("sources", [1, 3])
def test_heads_of_one_feature(sources: int, traced: bool) -> None:
    """Two hypotheses of each sentence, with as many heads as features: as each hypothesis alone."""
    cross, own = CrossAttention(4, [4] * sources, 4, 0.0, "cross"), SelfAttention(4, 4, 0.0, "self")
    x, memory, mask = torch.randn(6, 1, 4), torch.randn(3, 5, 4), torch.ones(3, 5, dtype=torch.bool)
    keys_values = cross.keys_values([memory] * sources)
    with torch.no_grad(), trace.listen() if traced else nullcontext():
        together = cross(x, keys_values, mask)
        alone = torch.cat(
            [cross(x[i : i + 1], keys_values[i // 2 : i // 2 + 1], mask[:1]) for i in range(6)]
        )
        step, _ = own.step(
            x, Cache(torch.empty(3, 0, 8), 0), torch.eye(2, dtype=torch.bool)[None, None]
        )
        single = torch.cat([own(x[i : i + 1], None) for i in range(6)])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(step, single)
