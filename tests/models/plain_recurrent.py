"""A plain implementation of the recurrent model, as its equations are written.

It computes word by word, cell by cell, gate by gate, and each direction separately. Tests compare
the model's results with it in any precision, and benchmarks compare the speed.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.models.recurrent import Recurrent
from fusetk.nn.cells import Cell, Transition


def step(
    cell: Cell, x: Tensor | None, h: Tensor, direction: int = 0, dropout: float = 0.0
) -> Tensor:
    """Compute Equations 6 to 16, and those of LAU: input (B, E), state (B, D) -> (B, D)."""
    width = cell.width

    def block(matrix: Tensor, i: int) -> Tensor:
        return matrix[direction, :, i * width : (i + 1) * width]

    def gate(i: int) -> Tensor:
        argument = h @ block(cell.state, i)
        if x is not None:
            argument = argument + x @ block(cell.input, i)
        if cell.gain is not None:
            gain, shift = cell.gain[direction, i], cell.shift[direction, i]
            argument = F.layer_norm(argument, (width,), gain, shift, 1e-6)
        return torch.sigmoid(argument)

    r, z = gate(0), gate(1)
    recalled = h @ block(cell.state, cell.gates) + cell.bias[direction]
    if x is None:
        c = torch.tanh(r * recalled)
    elif cell.kind == "lau":
        c = torch.tanh((1 - r) * (x @ block(cell.input, 3)) + r * recalled)
    else:
        c = torch.tanh(x @ block(cell.input, cell.gates) + r * recalled)
    if cell.linear_bias is not None:
        linear = x @ block(cell.input, 4) + cell.linear_bias[direction]
    if cell.kind == "l-gru":
        c = c + gate(2) * linear
    c = F.dropout(c, dropout)
    new = (1 - z) * h + z * c
    if cell.kind == "lau":
        g = gate(2)
        new = (1 - g) * new + g * linear
    return new


def transition(
    cells: Transition, x: Tensor, h: Tensor, direction: int = 0, dropout: float = 0.0
) -> list[Tensor]:
    """Return the states of one time step, the lowest cell's first."""
    states = [step(cells.cells[0], x, h, direction, dropout)]
    for cell in cells.cells[1:]:
        states.append(step(cell, None, states[-1], direction, dropout))
    return states


def features(model: Recurrent, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
    """Compute ``model(src, src_mask, tgt_in)``."""
    dropout = model.candidate_dropout.rate if model.training else 0.0
    embedded = model.source(src)
    directions = []
    for direction, order in ((0, range(src.shape[1])), (1, reversed(range(src.shape[1])))):
        h = embedded.new_zeros(len(src), model.encoder.width)
        states = {}
        for j in order:
            is_token = src_mask[:, j, None]
            states[j] = [
                torch.where(is_token, new, h)
                for new in transition(model.encoder, embedded[:, j], h, direction, dropout)
            ]
            h = states[j][-1]
        directions.append(
            [
                torch.stack([states[j][c] for j in range(src.shape[1])], 1)
                for c in range(len(model.encoder.cells))
            ]
        )
    history = [embedded, *(torch.cat(both, -1) for both in zip(*directions, strict=True))]
    top = model.encoder_fuse(history)
    memory = _Memory(history, top)
    sources = model.attend.sources(memory)  # type: ignore[arg-type]
    keys = [project(source) for project, source in zip(model.keys, sources, strict=True)]
    values = [project(source) for project, source in zip(model.values, sources, strict=True)]
    lengths = src_mask.sum(1, keepdim=True)
    mean = torch.where(src_mask[..., None], top, top.new_zeros(())).sum(1) / lengths
    h = torch.tanh(model.initial(mean))
    target = model.target(tgt_in)
    target = torch.cat((torch.zeros_like(target[:, :1]), target[:, 1:]), 1)
    steps, contexts = [], []
    for t in range(tgt_in.shape[1]):
        query = transition(model.query, target[:, t], h, 0, dropout)
        context = sum(
            _attend(model, query[-1], k, v, src_mask) for k, v in zip(keys, values, strict=True)
        )
        context = context * len(sources) ** -0.5
        if model.project is not None:
            context = model.project(context)
        states = query + transition(model.decoder, context, query[-1], 0, dropout)
        h = states[-1]
        steps.append(states)
        contexts.append(context)
    layers = [torch.stack([states[c] for states in steps], 1) for c in range(len(steps[0]))]
    fused = model.decoder_fuse([target, *layers])
    output = model.readout(torch.cat((target, fused, torch.stack(contexts, 1)), -1))
    return model.output_dropout(torch.tanh(output))


class _Memory:
    def __init__(self, history: list[Tensor], top: Tensor):
        self.history, self.output = history, top


def _attend(model: Recurrent, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Compute Equations 3 and 5, head by head.

    The shapes are: state (B, D), keys (B, S, D), values (B, S, C) -> (B, C).
    """
    attention = model.attention
    contexts = []
    query = query @ attention.query
    for q, k, v in zip(
        query.chunk(attention.heads, -1),
        keys.chunk(attention.heads, -1),
        values.chunk(attention.heads, -1),
        strict=True,
    ):
        energy = torch.tanh(q[:, None] + k) @ attention.vector  # (B, S)
        weight = energy.masked_fill(~mask, -torch.inf).softmax(1)
        contexts.append((weight[..., None] * v).sum(1))
    return torch.cat(contexts, -1)
