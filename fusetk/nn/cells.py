"""Recurrent cells: GRU, T-GRU and L-GRU (Meng and Zhang 2019, Equations 6 to 16), LAU (Wang et al. 2017, Equations 8 to 13)."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Bottom = Literal["gru", "lau", "l-gru"]
"""Cells that read an input; above them stand T-GRUs, which do not."""
EPS = 1e-6  # of layer normalisation


class Cell(nn.Module):
    """One cell, R of them side by side (the directions of an encoder), each with weights of its own.

    What a step needs of its input is one matrix product, ``input``, which can be made for all steps at once, and what it needs of
    the state is one more, ``state``: columns are the gates (reset, update, and of L-GRU and LAU the third), the candidate, and of the
    input the linear map H. Gates have no biases of their own, the candidate's map of the state and H have one.
    """

    def __init__(self, kind: str, read: int, width: int, directions: int = 1, norm: bool = True):
        """``read`` features of the input (a T-GRU reads none); ``norm``: each gate is normalised before its sigmoid."""
        super().__init__()
        self.kind, self.width = kind, width
        self.gates = 3 if kind in ("l-gru", "lau") else 2
        inputs = 0 if kind == "t-gru" else self.gates + 1
        self.state = nn.Parameter(torch.empty(directions, width, (self.gates + 1) * width))
        self.bias = nn.Parameter(torch.zeros(directions, width))
        self.linear_bias = nn.Parameter(torch.zeros(directions, width)) if self.gates == 3 else None
        inputs += self.linear_bias is not None
        self.input = nn.Parameter(torch.empty(directions, read, inputs * width)) if inputs else None
        self.gain = nn.Parameter(torch.ones(directions, self.gates, width)) if norm else None
        self.shift = nn.Parameter(torch.zeros(directions, self.gates, width)) if norm else None

    def forward(self, x: Tensor | None, a: Tensor, h: Tensor, keep: Tensor | None = None) -> Tensor:
        """One step from the mapped input ``x`` (R, n, its columns), the mapped state ``a`` (R, n, its columns) and the state ``h``
        (R, n, D): the next state. ``keep`` (R, n, D) multiplies the candidate: its dropout.

        GRU:   c = tanh(W_x x + r . (W_h h)),              h' = (1 - z) . h + z . c
        T-GRU: the same without x
        L-GRU: c = tanh(W_x x + r . (W_h h)) + l . H(x),   h' as GRU
        LAU:   c = tanh((1 - r) . (W_x x) + r . (W_h h)),  h' = (1 - g) . ((1 - z) . h + z . c) + g . H(x)
        """
        width, end = self.width, self.gates * self.width
        a = a.to(h.dtype)
        before = a[..., :end]
        recalled = a[..., end:] + self.bias[:, None]
        if x is None:
            r, z = self._gates(before)
            c = torch.tanh(r * recalled)
        else:
            x = x.to(h.dtype)
            r, z, *third = self._gates(before + x[..., :end])
            read, linear = x[..., end : end + width], x[..., end + width :]
            if self.linear_bias is not None:
                linear = linear + self.linear_bias[:, None]
            c = torch.tanh(
                (1 - r) * read + r * recalled if self.kind == "lau" else read + r * recalled
            )
            if self.kind == "l-gru":
                c = c + third[0] * linear
        if keep is not None:
            c = c * keep
        h = (1 - z) * h + z * c
        return (1 - third[0]) * h + third[0] * linear if self.kind == "lau" else h

    def _gates(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.unflatten(-1, (self.gates, self.width))
        if self.gain is not None and self.shift is not None:
            x = F.layer_norm(x, (self.width,), eps=EPS) * self.gain[:, None] + self.shift[:, None]
        return torch.sigmoid(x).unbind(-2)


class Transition(nn.Module):
    """A cell that reads, and ``depth`` T-GRUs above it that read the state alone: the transition from one state to the next
    (Meng and Zhang 2019, section "DTMT").
    """

    def __init__(
        self,
        kind: Bottom,
        depth: int,
        read: int,
        width: int,
        directions: int = 1,
        norm: bool = True,
    ):
        super().__init__()
        self.width = width
        above = [Cell("t-gru", 0, width, directions, norm) for _ in range(depth)]
        self.cells = nn.ModuleList([Cell(kind, read, width, directions, norm), *above])

    @property
    def input(self) -> Tensor:
        """What maps the input (R, read, columns)."""
        found: Tensor = self.cells[0].input  # type: ignore[assignment]
        return found
