"""A growing buffer for a decoder's earlier positions, used like an immutable value."""

from collections.abc import Callable

import torch
from torch import Tensor


class Cache:
    """Slots (B, n, D) that grow at their end.

    ``append`` returns a new cache; the old cache keeps its contents. Both share one buffer with
    free slots. Only the first ``append`` to a cache writes into the free slots; a second one copies
    the buffer. A search always continues from the newest state, so it copies each slot about once.
    """

    def __init__(
        self,
        buffer: Tensor,
        length: int,
        filled: list[int] | None = None,
        positions: Tensor | None = None,
    ):
        self.buffer = buffer  # (B, n + free slots, D)
        self.length = length
        # The number of used slots of the buffer, in a list that all caches on this buffer share.
        self.filled = [length] if filled is None else filled
        # The position of each slot's token (n,), if the attention needs it. It is the same for all
        # sentences.
        self.positions = positions

    def read(self) -> Tensor:
        """Return the slots (B, n, D), a view of the buffer."""
        return self.buffer[:, : self.length]

    def append(self, new: Tensor, positions: Tensor | None = None) -> "Cache":
        """Return this cache with ``new`` (B, m, D) at its end.

        ``positions`` (m,) are those of the new tokens; only caches with positions need them.
        """
        if positions is not None and self.positions is not None:
            positions = torch.cat((self.positions, positions))
        if not self.length:
            return Cache(new, new.shape[1], positions=positions)
        if new.requires_grad:  # training processes complete targets, so no step follows
            slots = torch.cat((self.read(), new), 1)
            return Cache(slots, slots.shape[1], positions=positions)
        end = self.length + new.shape[1]
        buffer = self.buffer
        filled = self.filled
        if filled[0] != self.length or end > buffer.shape[1]:
            # After a short step more steps follow; after a complete sentence no step follows.
            size = 2 * end if new.shape[1] < self.length else end
            buffer = new.new_empty(len(new), size, new.shape[2])
            filled = [end]
            buffer[:, : self.length] = self.read()
        buffer[:, self.length : end] = new
        filled[0] = end
        return Cache(buffer, end, filled, positions)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Cache":
        """Apply ``function`` to the filled slots (for ``fusetk.nn.nested``)."""
        return Cache(function(self.read()), self.length, positions=self.positions)
