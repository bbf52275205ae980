"""What a decoder remembers of earlier positions, as a value that grows cheaply."""

from collections.abc import Callable

import torch
from torch import Tensor


class Cache:
    """Slots (B, n, D) that grow at their end.

    A value: ``append`` returns a new cache and the old one still reads the same. Both share one buffer with room for
    more, and only the first to append to a cache writes behind it; a second copies. So a search, which always goes on
    from the newest state, copies each slot about once.
    """

    def __init__(self, buffer: Tensor, length: int, filled: list[int] | None = None):
        self.buffer = buffer  # (B, room, D)
        self.length = length
        self.filled = [length] if filled is None else filled  # shared by all caches on this buffer

    def read(self) -> Tensor:
        """(B, n, D), a view."""
        return self.buffer[:, : self.length]

    def append(self, new: Tensor) -> "Cache":
        """This cache with ``new`` (B, m, D) behind it."""
        if not self.length:
            return Cache(new, new.shape[1])
        if new.requires_grad:  # training reads a whole sentence at once: there is no next step
            return Cache(torch.cat((self.read(), new), 1), self.length + new.shape[1])
        end = self.length + new.shape[1]
        buffer, filled = self.buffer, self.filled
        if filled[0] != self.length or end > buffer.shape[1]:
            room = (
                2 * end if new.shape[1] < self.length else end
            )  # a step is short; a whole sentence has no next
            buffer, filled = new.new_empty(len(new), room, new.shape[2]), [end]
            buffer[:, : self.length] = self.read()
        buffer[:, self.length : end] = new
        filled[0] = end
        return Cache(buffer, end, filled)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Cache":
        """For ``fusetk.nn.nested``: the function sees the slots that are filled."""
        return Cache(function(self.read()), self.length)
