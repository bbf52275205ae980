"""Sentences of several lengths laid out step by step, so that a recurrence does nothing for a sentence that is over."""

from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Step t of a recurrence handles the first ``sizes[t]`` of the sentences, the longest first.

    Slots are counted step by step. Where sizes or their sum are rounded up, slots that are too many repeat what stands before them;
    nobody reads what comes out of them, and those behind the last step are not handled at all.
    """

    sizes: list[int]  # sentences at each step
    order: Tensor  # (rows,) which sentence each row is
    places: Tensor  # (N,) where in (B * T) the token of each slot stands
    mirrored: Tensor  # (N,) the slot of the same sentence as far from its end as this one from its beginning
    slots: Tensor  # (B, T) the slot of each token; of padding, that of the last token before it

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (N, ...)."""
        return x.flatten(0, 1).index_select(0, self.places)

    def unpack(self, x: Tensor) -> Tensor:
        """(N, ...) -> (B, T, ...); padding repeats the last token before it."""
        return x.index_select(0, self.slots.flatten()).view(*self.slots.shape, *x.shape[1:])


def packing(lengths: Tensor, steps: int, multiple: int = 1) -> Packing:
    """Of B sentences (B,), each of at least one token, in at most so many steps; sizes are multiples of ``multiple``, N of 16 times it
    where that is not 1.
    """
    device = lengths.device
    lengths, order = lengths.cpu().sort(descending=True, stable=True)
    alive = (lengths[:, None] > torch.arange(steps)).sum(0)  # (T,)
    sizes = (alive + multiple - 1) // multiple * multiple
    sizes = sizes[: int(lengths[0])]
    starts = sizes.cumsum(0) - sizes
    count = int(sizes.sum())
    step = torch.arange(len(sizes)).repeat_interleave(sizes)
    row = torch.arange(count) - starts[step]  # of each slot
    if multiple > 1:
        behind = -count % (16 * multiple)
        step, row = (
            torch.cat((step, step[-1:].expand(behind))),
            torch.cat((row, row[-1:].expand(behind))),
        )
    row = row.clamp_max(len(lengths) - 1)
    step = torch.minimum(step, lengths[row] - 1)
    rank = order.argsort()
    last = lengths[rank, None] - 1
    slots = starts[torch.minimum(torch.arange(steps), last)] + rank[:, None]
    rows = torch.arange(int(sizes[0])).clamp_max(len(lengths) - 1)
    found = order[rows], order[row] * steps + step, starts[lengths[row] - 1 - step] + row, slots
    return Packing(sizes.tolist(), *(tensor.to(device) for tensor in found))
