"""Length penalties."""

import pytest
import torch

from fusetk.decoding.scores import PENALTIES, gnmt, power


def test_penalties_have_the_values_of_their_equations():
    assert power(7.0, 1.0) == 7.0 and power(4.0, 0.5) == 2.0
    assert gnmt(1.0, 0.6) == 1.0 and gnmt(7.0, 1.0) == 2.0
    torch.testing.assert_close(gnmt(torch.tensor([1.0, 19.0]), 0.5), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("penalty", PENALTIES.values())
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0, 2.0])
def test_the_bound_is_never_exceeded(penalty, alpha):
    """A falling score / its length penalty is at most the present score / the last penalty."""
    scores = -torch.rand(50, 20, dtype=torch.float64).cumsum(1)
    lengths = torch.arange(1, 21, dtype=torch.float64)
    normalized = scores / penalty(lengths, alpha)
    for now in range(20):
        bound = scores[:, now] / penalty(20.0, alpha)
        assert (normalized[:, now:] <= bound[:, None] + 1e-12).all()


@pytest.mark.parametrize("penalty", PENALTIES.values())
def test_an_exponent_of_0_is_no_penalty(penalty):
    assert penalty(17.0, 0.0) == 1.0
