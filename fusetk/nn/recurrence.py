"""A recurrence without padding: one transition, or two with attention between them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Cell, Transition
from fusetk.nn.dropout import Dropout
from fusetk.nn.dropout_mask import scale, threshold
from fusetk.nn.fused import recurrence_loop as fused_recurrence
from fusetk.nn.fused.recurrence_buffers import LoopSpec


class DecoderAttention(NamedTuple):
    """The attention above the first transition of a decoder, and the transition above it."""

    attention: AdditiveAttention
    above: Transition  # reads the contexts
    input_weight: Tensor  # (C, columns), projects a context for ``above``
    keys: Tensor  # (sentences, n * S, D)
    values: Tensor  # (sentences, n * S, C)
    mask: Tensor  # (sentences, S)


class RecurrenceOutput(NamedTuple):
    """The results of a recurrence for its N slots."""

    states: tuple[Tensor, ...]  # (R, N, D) for each cell, the lowest first
    contexts: Tensor | None = None  # (N, C), results of the attention
    weights: Tensor | None = None  # (N, n * S, H), attention weights, if requested


def run_recurrence(
    first: Transition,
    x: Tensor,
    h: Tensor,
    sizes: Sequence[int],
    dropout: Dropout,
    decoder: DecoderAttention | None = None,
    return_weights: bool = False,
) -> RecurrenceOutput:
    """Run a recurrence over N slots, with fused kernels if they can be used.

    ``x`` (R, N, columns of the lowest cell) are the projected inputs. ``h`` (R, rows, D) are the
    states before the first step. ``sizes`` are the numbers of rows of each step, as in a
    ``StepLayout``; slots after the last step are not computed. With ``decoder``, the rows are
    hypotheses, and each sentence has the same number of them. ``dropout`` applies to each
    candidate.
    """
    cells: list[Cell] = [*first.cells, *(decoder.above.cells if decoder else ())]
    random_bits = None
    if dropout.training and dropout.units:
        shape = (*x.shape[:2], h.shape[-1])
        random_bits = [dropout.random_bits(shape, h.device) for _ in cells]
    attention = decoder.attention if decoder else None
    # The kernels compute gradients only for one hypothesis per sentence.
    one_hypothesis = decoder is None or len(decoder.keys) == h.shape[1]
    kernels_suffice = one_hypothesis or not torch.is_grad_enabled()
    if not kernels_suffice or not fused_recurrence.usable(x, h, attention):
        return _run_step_by_step(
            first, cells, x, h, sizes, dropout, random_bits, decoder, return_weights
        )
    spec = LoopSpec(
        cells=cells,
        below_attention=len(first.cells),
        sizes=sizes,
        random_bits=random_bits,
        threshold=threshold(dropout.units),
        scale=scale(dropout.units),
        attention=attention,
        mask=decoder.mask.contiguous() if decoder else None,
        keep_weights=return_weights or torch.is_grad_enabled(),
    )
    attention_inputs = (decoder.keys, decoder.values, decoder.input_weight) if decoder else ()
    return RecurrenceOutput(*fused_recurrence.run(spec, x, h, attention_inputs))


def _run_step_by_step(
    first: Transition,
    cells: Sequence[Cell],
    x: Tensor,
    h: Tensor,
    sizes: Sequence[int],
    dropout: Dropout,
    random_bits: Sequence[Tensor] | None,
    decoder: DecoderAttention | None,
    return_weights: bool,
) -> RecurrenceOutput:
    """Run the recurrence cell by cell, with autograd.

    Products have the type of ``x``. The states may have a higher precision.
    """
    states: list[list[Tensor]] = [[] for _ in cells]
    contexts, weights = [], []
    rest = x.shape[1] - sum(sizes)  # slots after the last step
    parts = [*sizes, rest]
    factors = [dropout.factors(bits, h.dtype).split(parts, 1) for bits in random_bits or ()]
    for t, step_input in enumerate(x.split(parts, 1)[:-1]):
        h = h[:, : sizes[t]]
        for c, cell in enumerate(cells):
            cell_input: Tensor | None = None if c else step_input
            if decoder and c == len(first.cells):
                context, weight = _attend(decoder, h[0].to(x.dtype))
                contexts.append(context)
                if return_weights:
                    weights.append(weight)
                cell_input = (context @ decoder.input_weight)[None]
            h = cell(cell_input, h.to(x.dtype) @ cell.state, h, factors[c][t] if factors else None)
            states[c].append(h)
    return RecurrenceOutput(
        tuple(_join(steps, rest, 1) for steps in states),
        _join(contexts, rest, 0) if contexts else None,
        _join(weights, rest, 0) if weights else None,
    )


def _attend(decoder: DecoderAttention, states: Tensor) -> tuple[Tensor, Tensor]:
    """Attend from the ``states`` (rows, D) of a step to their sentences.

    Returns the contexts (rows, C) and the attention weights (rows, n * S, H).
    """
    # In training a row is a sentence, and a step has only the rows of unfinished sentences.
    sentences = min(len(states), len(decoder.keys))
    return decoder.attention(
        states @ decoder.attention.query,
        decoder.keys[:sentences],
        decoder.values[:sentences],
        decoder.mask[:sentences],
    )


def _join(steps: Sequence[Tensor], rest: int, dim: int) -> Tensor:
    """Concatenate tensors of all steps along ``dim``, with ``rest`` zero slots at the end."""
    if len(steps) == 1 and not rest:
        return steps[0]
    shape = list(steps[0].shape)
    shape[dim] = rest
    return torch.cat([*steps, steps[0].new_zeros(shape)], dim)
