"""Recurrent cells against the papers' equations in NumPy and PyTorch's GRU; gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from fusetk.nn.cells import Cell, InputCell, Transition
from tests.helpers.equations import sigmoid

KINDS = ["gru", "lau", "l-gru", "t-gru"]


def cell(kind: str, norm: bool = True, read: int = 5, width: int = 4, directions: int = 1) -> Cell:
    torch.manual_seed(3)
    module = Cell(kind, read, width, directions, norm).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def one_step(
    module: Cell, x: torch.Tensor | None, h: torch.Tensor, factors: torch.Tensor | None = None
) -> torch.Tensor:
    return module(None if x is None else x @ module.input, h @ module.state, h, factors)


def normed(x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * gain + shift


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_computes_the_equations_of_the_papers(kind: str, norm: bool) -> None:
    module = cell(kind, norm)
    random = np.random.default_rng(0)
    x, h, factors = (random.normal(size=(3, width)) for width in (5, 4, 4))
    cell_input = None if kind == "t-gru" else torch.tensor(x)[None]
    result = one_step(module, cell_input, torch.tensor(h)[None], torch.tensor(factors)[None])

    w = {name: value[0].detach().numpy() for name, value in module.named_parameters()}
    state, read = np.split(w["state"], module.gates + 1, 1), [np.zeros((5, 4))] * 5
    if kind != "t-gru":
        read = np.split(w["input"], module.gates + 1 + (module.gates == 3), 1)
    gates = [x @ read[i] + h @ state[i] for i in range(module.gates)]
    if norm:
        gates = [normed(gate, w["gain"][i], w["shift"][i]) for i, gate in enumerate(gates)]
    r, z, *third = map(sigmoid, gates)  # Equations 8, 9, 12, 13, 16
    inner, recalled = x @ read[module.gates], h @ state[module.gates] + w["bias"]
    if kind == "gru":
        expected = (1 - z) * h + z * factors * np.tanh(inner + r * recalled)  # Equations 6, 7
    elif kind == "t-gru":
        expected = (1 - z) * h + z * factors * np.tanh(r * recalled)  # Equations 10, 11
    else:
        linear = x @ read[4] + w["linear_bias"]
        if kind == "l-gru":
            # Equations 14, 15
            candidate = np.tanh(inner + r * recalled) + third[0] * linear
            expected = (1 - z) * h + z * factors * candidate
        else:
            expected = (1 - z) * h + z * factors * np.tanh((1 - r) * inner + r * recalled)
            expected = (1 - third[0]) * expected + third[0] * linear
    np.testing.assert_allclose(result[0].detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_gru_without_normalisation_is_pytorchs() -> None:
    """PyTorch's update gate scales the old state, ours (Equation 6) the candidate.

    Both apply the reset gate in the same place.
    """
    module = cell("gru", norm=False)
    torch_gru = nn.GRU(5, 4, batch_first=True).double()
    width = module.width
    with torch.no_grad():
        for parameter in torch_gru.parameters():
            parameter.zero_()
        for ours, matrix in (
            (module.input[0], torch_gru.weight_ih_l0),
            (module.state[0], torch_gru.weight_hh_l0),
        ):
            matrix.copy_(
                torch.cat((ours[:, :width], -ours[:, width : 2 * width], ours[:, 2 * width :]), 1).T
            )
        torch_gru.bias_hh_l0[2 * width :] = module.bias[0]
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    expected, _ = torch_gru(x)
    h, states = torch.zeros(1, 3, 4, dtype=torch.float64), []
    for t in range(7):
        h = one_step(module, x[None, :, t], h)
        states.append(h[0])
    torch.testing.assert_close(torch.stack(states, 1), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    module = cell(kind, directions=2)
    x = None if kind == "t-gru" else torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    h = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    inputs = [h, *([] if x is None else [x]), *module.parameters()]
    assert torch.autograd.gradcheck(lambda *_: one_step(module, x, h), inputs, fast_mode=True)


@pytest.mark.parametrize("kind", ["gru", "lau", "l-gru"])
def test_a_transition_has_the_parameters_of_its_matrices_and_vectors(kind: InputCell) -> None:
    """GRU: 3 matrices for the input, 3 for the state; L-GRU, LAU: 5 and 4; T-GRU: 0 and 3.

    The source is section "Training details" of the paper.
    """

    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    read, width = 7, 5
    inputs, states, gates = (3, 3, 2) if kind == "gru" else (5, 4, 3)
    matrices = (inputs * read + states * width) * width
    bottom = matrices + width * (1 + (gates == 3)) + 2 * gates * width
    above = 3 * width * width + width + 4 * width
    assert count(Transition(kind, 2, read, width)) == bottom + 2 * above
    assert count(Transition(kind, 2, read, width, directions=2)) == 2 * (bottom + 2 * above)
