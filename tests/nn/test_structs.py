"""Structs for calls of the compiled kernels."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusetk.nn.feedforward import FeedForward
from fusetk.nn.fused import decoding, recurrence_loop, streams
from fusetk.nn.fused.build import EFFECTS, library
from fusetk.nn.fused.structs import INT, POINTER, computes, fill, struct

PAIR = struct("PAIR", ("count", INT), ("x y", POINTER))


def test_members_are_set_and_tensors_become_addresses() -> None:
    x = torch.zeros(3)
    pair = fill(PAIR(y=1), count=2, x=x, y=None)
    assert (pair.count, pair.x, pair.y) == (2, x.data_ptr(), None)


def test_a_member_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="cuont"):
        fill(PAIR(), cuont=2)
    with pytest.raises(AttributeError, match="cuont"):
        PAIR().cuont = 2


def usable(x: Tensor) -> list[bool]:
    """Return whether the kernels of each kind would compute on x (3, 16)."""
    with torch.no_grad():
        return [
            computes("transformer", x),
            computes("convolution", x),
            streams.usable(x),
            decoding.usable(x),
            recurrence_loop.usable(x, x, None),
        ]


@pytest.mark.skipif(not all(map(library, EFFECTS)), reason="there is no C++ compiler")
def test_kernels_do_not_read_fake_tensors() -> None:
    assert all(usable(torch.randn(3, 16)))
    with FakeTensorMode():
        x = torch.randn(3, 16)
        assert not any(usable(x))
    assert not any(usable(x)), "outside the mode"


@pytest.mark.parametrize("trace", [torch.jit.trace, lambda f, x: make_fx(f)(x)])
def test_recorded_operations_read_their_inputs(trace) -> None:
    ffn = FeedForward(16, 32, 16).eval()
    x, y = torch.randn(2, 3, 16)
    with torch.no_grad():
        recorded = trace(ffn, x)
        torch.testing.assert_close(recorded(y), ffn(y))
