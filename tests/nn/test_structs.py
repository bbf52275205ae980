"""Structs for calls of the compiled kernels."""

import pytest
import torch

from fusetk.nn.fused.structs import INT, POINTER, fill, struct

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
