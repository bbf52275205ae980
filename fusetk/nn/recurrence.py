"""A recurrence over packed sentences: one transition, or two with attention between them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Cell, Transition
from fusetk.nn.dropout import Dropout
from fusetk.nn.fused import loop as fused


class Across(NamedTuple):
    """What stands on top of the first transition of a decoder: attention, and a transition that reads what it finds."""

    attention: AdditiveAttention
    above: Transition
    input: Tensor  # (C, columns), what maps the found to what the transition reads
    keys: Tensor  # (sentences, n * S, D)
    values: Tensor  # (sentences, n * S, C)
    mask: Tensor  # (sentences, S)


class Found(NamedTuple):
    """What a recurrence leaves, slot by slot."""

    states: tuple[Tensor, ...]  # of each cell, from the bottom, (R, N, D)
    contexts: Tensor | None = None  # what attention found (N, C)
    weights: Tensor | None = None  # of attention, (N, n * S, H), where they were wanted


def recur(
    first: Transition,
    x: Tensor,
    h: Tensor,
    sizes: Sequence[int],
    dropout: Dropout,
    across: Across | None = None,
    weights: bool = False,
) -> Found:
    """Run over N slots, those behind the last step left out: mapped inputs ``x`` (R, N, columns of the first cell), the state before
    them ``h`` (R, rows, D), and how many rows each step handles, as in a ``Packing``. Rows are hypotheses of the sentences of
    ``across``, as many of each.

    Each candidate is dropped out. ``weights`` of attention are wanted. Where there is a fused one, that is what runs.
    """
    cells: list[Cell] = [*first.cells, *(across.above.cells if across else ())]
    words = None
    if dropout.training and dropout.steps:
        words = [dropout.words((*x.shape[:2], h.shape[-1]), h.device) for _ in cells]
    attention, mask = (across.attention, across.mask.contiguous()) if across else (None, None)
    alone = across is None or len(across.keys) == len(
        h[0]
    )  # one hypothesis a sentence: only then there are gradients
    if (alone or not torch.is_grad_enabled()) and fused.usable(x, h, attention):
        kept = weights or torch.is_grad_enabled()
        plan = fused.Plan(
            cells,
            len(first.cells),
            sizes,
            words,
            dropout.threshold,
            dropout.scale,
            attention,
            mask,
            kept,
        )
        states, *attended = fused.run(
            plan, x, h, (across.keys, across.values, across.input) if across else ()
        )
        return Found(states, *attended)
    return _plain(first, cells, x, h, sizes, dropout, words, across, weights)


def _plain(
    first: Transition,
    cells: Sequence[Cell],
    x: Tensor,
    h: Tensor,
    sizes: Sequence[int],
    dropout: Dropout,
    words: Sequence[Tensor] | None,
    across: Across | None,
    wanted: bool,
) -> Found:
    """Step by step and cell by cell, with autograd."""
    states: list[list[Tensor]] = [[] for _ in cells]
    contexts, weights = [], []
    behind = [h.new_zeros(len(h), x.shape[1] - sum(sizes), h.shape[-1])]
    parts = [*sizes, behind[0].shape[1]]
    kept = [dropout.keep(drawn, h.dtype).split(parts, 1) for drawn in words or ()]
    for t, read in enumerate(x.split(parts, 1)[:-1]):
        h = h[:, : sizes[t]]
        for c, cell in enumerate(cells):
            reads: Tensor | None = read if not c else None
            if across and c == len(first.cells):
                sentences = len(across.keys) if len(h[0]) > len(across.keys) else len(h[0])
                keys, values, mask = (
                    tensor[:sentences] for tensor in (across.keys, across.values, across.mask)
                )
                found, weight = across.attention(h[0] @ across.attention.query, keys, values, mask)
                contexts.append(found)
                weights += [weight] if wanted else []
                reads = (found @ across.input)[None]
            h = cell(reads, h @ cell.state, h, kept[c][t] if kept else None)
            states[c].append(h)
    if across:
        contexts.append(contexts[0].new_zeros(parts[-1], contexts[0].shape[-1]))
    if weights:
        weights.append(weights[0].new_zeros(parts[-1], *weights[0].shape[1:]))
    return Found(
        tuple(
            torch.cat(found + behind, 1) if len(found) > 1 or parts[-1] else found[0]
            for found in states
        ),
        torch.cat(contexts) if across else None,
        torch.cat(weights) if weights else None,
    )
