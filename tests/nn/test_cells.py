"""Recurrent cells: the papers' equations in NumPy, torch's GRU, gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from fusetk.nn.cells import Cell, Transition

KINDS = ["gru", "lau", "l-gru", "t-gru"]


def cell(kind: str, norm: bool = True, read: int = 5, width: int = 4, directions: int = 1) -> Cell:
    torch.manual_seed(3)
    made = Cell(kind, read, width, directions, norm).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def one_step(
    made: Cell, x: torch.Tensor | None, h: torch.Tensor, keep: torch.Tensor | None = None
) -> torch.Tensor:
    return made(None if x is None else x @ made.input, h @ made.state, h, keep)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def normed(x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * gain + shift


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_equations(kind: str, norm: bool) -> None:
    made = cell(kind, norm)
    random = np.random.default_rng(0)
    x, h, keep = random.normal(size=(3, 5)), random.normal(size=(3, 4)), random.normal(size=(3, 4))
    given = None if kind == "t-gru" else torch.tensor(x)[None]
    found = (
        one_step(made, given, torch.tensor(h)[None], torch.tensor(keep)[None])[0].detach().numpy()
    )

    w = {name: value[0].detach().numpy() for name, value in made.named_parameters()}
    state, read = np.split(w["state"], made.gates + 1, 1), [np.zeros((5, 4))] * 5
    if kind != "t-gru":
        read = np.split(w["input"], made.gates + 1 + (made.gates == 3), 1)
    gates = [x @ read[i] + h @ state[i] for i in range(made.gates)]
    if norm:
        gates = [normed(gate, w["gain"][i], w["shift"][i]) for i, gate in enumerate(gates)]
    r, z, *third = map(sigmoid, gates)  # Equations 8, 9, 12, 13, 16
    inner, recalled = x @ read[made.gates], h @ state[made.gates] + w["bias"]
    if kind == "gru":
        wanted = (1 - z) * h + z * keep * np.tanh(inner + r * recalled)  # Equations 6, 7
    elif kind == "t-gru":
        wanted = (1 - z) * h + z * keep * np.tanh(r * recalled)  # Equations 10, 11
    else:
        linear = x @ read[4] + w["linear_bias"]
        if kind == "l-gru":
            wanted = (1 - z) * h + z * keep * (
                np.tanh(inner + r * recalled) + third[0] * linear
            )  # Equations 14, 15
        else:
            wanted = (1 - z) * h + z * keep * np.tanh((1 - r) * inner + r * recalled)
            wanted = (1 - third[0]) * wanted + third[0] * linear
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_gru_without_normalisation_is_torchs() -> None:
    """Torch's update gate says what stays, ours (Equation 6) what is new; where the reset gate stands is the same."""
    made, theirs = cell("gru", norm=False), nn.GRU(5, 4, batch_first=True).double()
    width = made.width
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
        for ours, matrix in (
            (made.input[0], theirs.weight_ih_l0),
            (made.state[0], theirs.weight_hh_l0),
        ):
            matrix.copy_(
                torch.cat((ours[:, :width], -ours[:, width : 2 * width], ours[:, 2 * width :]), 1).T
            )
        theirs.bias_hh_l0[2 * width :] = made.bias[0]
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    wanted, _ = theirs(x)
    h, found = torch.zeros(1, 3, 4, dtype=torch.float64), []
    for t in range(7):
        h = one_step(made, x[None, :, t], h)
        found.append(h[0])
    torch.testing.assert_close(torch.stack(found, 1), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients(kind: str) -> None:
    made = cell(kind, directions=2)
    x = None if kind == "t-gru" else torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    h = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    inputs = [h, *([] if x is None else [x]), *made.parameters()]
    assert torch.autograd.gradcheck(lambda *_: one_step(made, x, h), inputs)


@pytest.mark.parametrize("kind", ["gru", "lau", "l-gru"])
def test_parameters(kind: str) -> None:
    """GRU: 3 maps of the input and 3 of the state; L-GRU and LAU: 5 and 4; a T-GRU: 3 of the state (section "Training details")."""

    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    read, width = 7, 5
    maps, states, gates = (3, 3, 2) if kind == "gru" else (5, 4, 3)
    bottom = (maps * read + states * width) * width + width * (1 + (gates == 3)) + 2 * gates * width
    above = 3 * width * width + width + 4 * width
    assert count(Transition(kind, 2, read, width)) == bottom + 2 * above  # type: ignore[arg-type]
    assert count(Transition(kind, 2, read, width, directions=2)) == 2 * (bottom + 2 * above)  # type: ignore[arg-type]
