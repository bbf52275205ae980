"""The recurrent model as its equations read: word by word, cell by cell, gate by gate, each direction alone.

The oracle of the real one, in any precision, and what its speed is measured against.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.models.recurrent import Recurrent
from fusetk.nn.cells import Cell, Transition


def step(
    cell: Cell, x: Tensor | None, h: Tensor, direction: int = 0, dropout: float = 0.0
) -> Tensor:
    """Equations 6 to 16, and LAU's: input (B, E), state (B, D) -> (B, D)."""
    width = cell.width

    def of(matrix: Tensor, i: int) -> Tensor:
        return matrix[direction, :, i * width : (i + 1) * width]

    def gate(i: int) -> Tensor:
        found = h @ of(cell.state, i)
        if x is not None:
            found = found + x @ of(cell.input, i)
        if cell.gain is not None:
            found = F.layer_norm(
                found, (width,), cell.gain[direction, i], cell.shift[direction, i], 1e-6
            )
        return torch.sigmoid(found)

    r, z = gate(0), gate(1)
    recalled = h @ of(cell.state, cell.gates) + cell.bias[direction]
    if x is None:
        c = torch.tanh(r * recalled)
    elif cell.kind == "lau":
        c = torch.tanh((1 - r) * (x @ of(cell.input, 3)) + r * recalled)
    else:
        c = torch.tanh(x @ of(cell.input, cell.gates) + r * recalled)
    if cell.linear_bias is not None:
        linear = x @ of(cell.input, 4) + cell.linear_bias[direction]
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
    """The states of one time step, from the bottom."""
    found = [step(cells.cells[0], x, h, direction, dropout)]
    for cell in cells.cells[1:]:
        found.append(step(cell, None, found[-1], direction, dropout))
    return found


def features(model: Recurrent, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
    """What ``model(src, src_mask, tgt_in)`` is."""
    dropout = model.candidate_dropout.rate if model.training else 0.0
    words = model.source(src)
    directions = []
    for direction, order in ((0, range(src.shape[1])), (1, reversed(range(src.shape[1])))):
        h = words.new_zeros(len(src), model.encoder.width)
        states = {}
        for j in order:
            there = src_mask[:, j, None]
            states[j] = [
                torch.where(there, new, h)
                for new in transition(model.encoder, words[:, j], h, direction, dropout)
            ]
            h = states[j][-1]
        directions.append(
            [
                torch.stack([states[j][c] for j in range(src.shape[1])], 1)
                for c in range(len(model.encoder.cells))
            ]
        )
    history = [words, *(torch.cat(both, -1) for both in zip(*directions, strict=True))]
    top = model.encoder_fuse(history)
    memory = _Memory(history, top)
    sources = model.attend.sources(memory)  # type: ignore[arg-type]
    keys = [project(source) for project, source in zip(model.keys, sources, strict=True)]
    values = [project(source) for project, source in zip(model.values, sources, strict=True)]
    lengths = src_mask.sum(1, keepdim=True)
    mean = torch.where(src_mask[..., None], top, top.new_zeros(())).sum(1) / lengths
    h = torch.tanh(model.initial(mean))
    read = model.target(tgt_in)
    read = torch.cat((torch.zeros_like(read[:, :1]), read[:, 1:]), 1)
    below, contexts = [], []
    for t in range(tgt_in.shape[1]):
        query = transition(model.query, read[:, t], h, 0, dropout)
        context = sum(
            _attend(model, query[-1], k, v, src_mask) for k, v in zip(keys, values, strict=True)
        )
        context = context * len(sources) ** -0.5
        if model.project is not None:
            context = model.project(context)
        states = query + transition(model.decoder, context, query[-1], 0, dropout)
        h = states[-1]
        below.append(states)
        contexts.append(context)
    layers = [torch.stack([states[c] for states in below], 1) for c in range(len(below[0]))]
    found = model.readout(
        torch.cat((read, model.decoder_fuse([read, *layers]), torch.stack(contexts, 1)), -1)
    )
    return model.output_dropout(torch.tanh(found))


class _Memory:
    def __init__(self, history: list[Tensor], top: Tensor):
        self.history, self.output = history, top


def _attend(model: Recurrent, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Equations 3 and 5, head by head: state (B, D), keys (B, S, D), values (B, S, C) -> (B, C)."""
    attention, found = model.attention, []
    query = query @ attention.query
    for q, k, v in zip(
        query.chunk(attention.heads, -1),
        keys.chunk(attention.heads, -1),
        values.chunk(attention.heads, -1),
        strict=True,
    ):
        energy = torch.tanh(q[:, None] + k) @ attention.vector  # (B, S)
        weight = energy.masked_fill(~mask, -torch.inf).softmax(1)
        found.append((weight[..., None] * v).sum(1))
    return torch.cat(found, -1)
