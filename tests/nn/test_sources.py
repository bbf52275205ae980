"""Attention over several sources."""

from contextlib import nullcontext

import pytest
import torch

from fusetk import trace
from fusetk.nn.attention import (
    CrossAttention,
    SelfAttention,
    scaled_dot_product,
    scaled_dot_product_as_heads,
)
from fusetk.nn.cache import Cache


@pytest.mark.parametrize("scale", [None, 1.0])
def test_the_softmax_is_taken_per_source(scale: float | None) -> None:
    """One product over all sources, and each source as a head, against one source at a time."""
    q, (k, v) = torch.randn(2, 3, 4, 6), torch.randn(2, 2, 3, 5 * 7, 6)
    mask = torch.arange(7) < torch.tensor([[[[7]]], [[[4]]]])
    expected = sum(
        scaled_dot_product(q, k[:, :, i : i + 7], v[:, :, i : i + 7], mask, 0.0, "", scale)
        for i in range(0, 35, 7)
    )
    with trace.listen() as tensors:
        traced = scaled_dot_product(q, k, v, mask, 0.0, "cross", scale, sources=5)
    untraced = scaled_dot_product(q, k, v, mask, 0.0, "", scale, sources=5)
    as_heads = scaled_dot_product_as_heads(q, k, v, mask, 0.0, scale, 5)
    for result in (traced, untraced, as_heads):
        torch.testing.assert_close(result, expected)
    [weights] = tensors["cross"]
    assert weights.shape == (2, 15, 4, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 15, 4))
    assert not weights[1, ..., 4:].any()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("sources", [1, 3])
def test_heads_of_one_feature(sources: int, traced: bool) -> None:
    """Two hypotheses of a sentence give the same results together as each alone."""
    cross = CrossAttention(4, [4] * sources, 4, 0.0, "cross")
    own = SelfAttention(4, 4, 0.0, "self")
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
