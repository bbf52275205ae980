"""The layout of a batch step by step, so that a recurrence skips finished sentences."""

from typing import NamedTuple

import torch
from torch import Tensor


class StepLayout(NamedTuple):
    """The layout of a batch in N slots, one for each token.

    Sentences are sorted, the longest first. Step t processes the first ``sizes[t]`` of them. Slots
    are numbered step by step. Rounding adds padding slots, which repeat tokens of the batch. Their
    outputs are ignored, and slots after the last step are not computed.
    """

    sizes: list[int]  # number of sentences at each step
    order: Tensor  # (rows,) the sentence of each row
    places: Tensor  # (N,) the index in (B * T) of each slot's token
    mirrored: Tensor  # (N,) the slot of the same sentence at the mirrored position
    slots: Tensor  # (B, T) the slot of each token; for padding, that of the sentence's last token

    @classmethod
    def of(
        cls, lengths: Tensor, steps: int, multiple: int = 1, device: torch.device | None = None
    ) -> "StepLayout":
        """Return the layout of B sentences with ``lengths`` (B,), each from 1 to ``steps`` tokens.

        The tensors of the layout are on ``device``, by default that of ``lengths``. If ``lengths``
        are not in the memory of the host, the host waits for their device.

        Sizes are rounded up to a multiple of ``multiple``. If ``multiple`` > 1, the number N of
        slots is rounded up to a multiple of 16 * ``multiple``.
        """
        device = device or lengths.device
        lengths, order = lengths.cpu().sort(descending=True, stable=True)
        active = (lengths[:, None] > torch.arange(steps)).sum(0)  # (T,) unfinished sentences
        sizes = (active + multiple - 1) // multiple * multiple
        sizes = sizes[: int(lengths[0])]
        starts = sizes.cumsum(0) - sizes
        count = int(sizes.sum())
        step = torch.arange(len(sizes)).repeat_interleave(sizes)  # (N,) step of each slot
        row = torch.arange(count) - starts[step]  # (N,) row of each slot
        if multiple > 1:
            extra = -count % (16 * multiple)
            step = torch.cat((step, step[-1:].expand(extra)))
            row = torch.cat((row, row[-1:].expand(extra)))
        row = row.clamp_max(len(lengths) - 1)
        step = torch.minimum(step, lengths[row] - 1)
        rank = order.argsort()
        last = lengths[rank, None] - 1
        slots = starts[torch.minimum(torch.arange(steps), last)] + rank[:, None]
        rows = torch.arange(int(sizes[0])).clamp_max(len(lengths) - 1)
        return cls(
            sizes=sizes.tolist(),
            order=order[rows].to(device, non_blocking=True),
            places=(order[row] * steps + step).to(device, non_blocking=True),
            mirrored=(starts[lengths[row] - 1 - step] + row).to(device, non_blocking=True),
            slots=slots.to(device, non_blocking=True),
        )

    @property
    def is_real(self) -> Tensor:
        """False at padding slots, (N,)."""
        real = torch.zeros(len(self.places), dtype=torch.bool, device=self.places.device)
        return real.index_fill_(0, self.slots.flatten(), True)

    def to_slots(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (N, ...)."""
        return x.flatten(0, 1).index_select(0, self.places)

    def from_slots(self, x: Tensor) -> Tensor:
        """(N, ...) -> (B, T, ...); padding repeats the sentence's last token."""
        return x.index_select(0, self.slots.flatten()).view(*self.slots.shape, *x.shape[1:])
