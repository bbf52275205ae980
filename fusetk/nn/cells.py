"""Recurrent cells.

GRU, T-GRU and L-GRU: Meng and Zhang 2019, Equations 6 to 16. LAU: Wang et al. 2017, Equations 8
to 13.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.parameter import unset_parameter

InputCell = Literal["gru", "lau", "l-gru"]
"""The cells that read an input. A T-GRU reads the state only."""
GATE_EPSILON = 1e-6  # of the layer normalisation of a gate; EPS in recurrence.cpp is equal


class Cell(nn.Module):
    """R cells for the R directions of an encoder, or one cell (R = 1).

    Each direction has its own weights. A step needs two matrix products: of the input with
    ``input``, and of the state with ``state``. The products with ``input`` can be computed for all
    steps at once. The first columns of both matrices are the gates: reset, update, and for L-GRU
    and LAU the third gate. The next columns are the candidate. For L-GRU and LAU the last columns
    of ``input`` are the linear map H. The gates have no biases. The candidate's projection of the
    state has a bias. H may have a bias; else its bias is a constant zero, which is not a parameter,
    so that the fused kernels always have one to read.
    """

    linear_bias: Tensor | None  # (R, D); None without H

    def __init__(
        self,
        kind: str,
        input_width: int,
        width: int,
        directions: int,
        norm: bool,
        linear_bias: bool = True,
    ):
        """``input_width``: features of the input; a T-GRU ignores it.

        ``norm``: apply layer normalisation to each gate before its sigmoid. ``linear_bias``: H has
        a bias.
        """
        super().__init__()
        self.kind = kind
        self.width = width
        has_linear_map = kind in ("l-gru", "lau")
        self.gates = 3 if has_linear_map else 2
        # The gates, the candidate and, for L-GRU and LAU, H.
        inputs = 0 if kind == "t-gru" else self.gates + 1 + has_linear_map
        self.state = unset_parameter(directions, width, (self.gates + 1) * width)
        self.bias = nn.Parameter(torch.zeros(directions, width))
        if not has_linear_map:
            self.linear_bias = None
        elif linear_bias:
            self.linear_bias = nn.Parameter(torch.zeros(directions, width))
        else:
            self.register_buffer("linear_bias", torch.zeros(directions, width), persistent=False)
        self.input = unset_parameter(directions, input_width, inputs * width) if inputs else None
        self.gain = nn.Parameter(torch.ones(directions, self.gates, width)) if norm else None
        self.shift = nn.Parameter(torch.zeros(directions, self.gates, width)) if norm else None

    def forward(
        self, x: Tensor | None, a: Tensor, h: Tensor, dropout_factors: Tensor | None = None
    ) -> Tensor:
        """Compute the next state (R, n, D) from the current state ``h`` (R, n, D).

        ``x`` (R, n, columns of ``input``) is the projected input, ``a`` (R, n, columns of
        ``state``) the projected state. ``dropout_factors`` (R, n, D) multiply the candidate. r, z
        and the third gate (l or g) are sigmoids of the sum of their columns of ``x`` and ``a``.
        With ``norm`` the sum is normalised first, each gate by itself. The bias b is not in the
        equations of Meng and Zhang 2019. The kernels of ``fusetk.nn.fused`` compute the same
        equations instead of this method, unless ``FUSETK_KERNELS=off`` is set.

        GRU:   c = tanh(W_x x + r . (W_h h + b)),            h' = (1 - z) . h + z . c
        T-GRU: the same without x
        L-GRU: c = tanh(W_x x + r . (W_h h + b)) + l . H(x), h' as GRU
        LAU:   c = tanh((1 - r) . (W_x x) + r . (W_h h + b)),
               h' = (1 - g) . ((1 - z) . h + z . c) + g . H(x)
        """
        width = self.width
        end = self.gates * width
        a = a.to(h.dtype)
        gates = a[..., :end]
        recalled = a[..., end:] + self.bias[:, None]
        if x is None:
            r, z = self._gates(gates)
            c = torch.tanh(r * recalled)
        else:
            x = x.to(h.dtype)
            r, z, *third = self._gates(gates + x[..., :end])
            candidate_input = x[..., end : end + width]
            linear = x[..., end + width :]
            if self.linear_bias is not None:
                linear = linear + self.linear_bias[:, None]
            if self.kind == "lau":
                candidate_input = (1 - r) * candidate_input
            c = torch.tanh(candidate_input + r * recalled)
            if self.kind == "l-gru":
                c = c + third[0] * linear
        if dropout_factors is not None:
            c = c * dropout_factors
        h = (1 - z) * h + z * c
        return (1 - third[0]) * h + third[0] * linear if self.kind == "lau" else h

    def _gates(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.unflatten(-1, (self.gates, self.width))
        if self.gain is not None and self.shift is not None:
            x = F.layer_norm(x, (self.width,), eps=GATE_EPSILON)
            x = x * self.gain[:, None] + self.shift[:, None]
        return torch.sigmoid(x).unbind(-2)


class Transition(nn.Module):
    """The transition from one state to the next (Meng and Zhang 2019, section "DTMT").

    The lowest cell reads an input. The ``depth`` T-GRUs above it read the state only.
    """

    def __init__(
        self,
        kind: InputCell,
        depth: int,
        input_width: int,
        width: int,
        directions: int = 1,
        norm: bool = True,
        linear_bias: bool = True,
    ):
        super().__init__()
        self.width = width
        above = [Cell("t-gru", 0, width, directions, norm) for _ in range(depth)]
        lowest = Cell(kind, input_width, width, directions, norm, linear_bias)
        self.cells = nn.ModuleList([lowest, *above])

    @property
    def input_weight(self) -> Tensor:
        """Matrix (R, features, columns) that projects the input for the lowest cell."""
        return self.cells[0].input  # type: ignore[return-value]
