"""Packed sentences: tensors that hold real tokens only, without padding."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """The layout of the N real tokens of B sentences in a tensor (1, N, D).

    The sentences follow each other. Modules that treat each position separately need no layout: for
    them the tensor is one sentence of N positions. Attention receives the layout in place of a
    mask.
    """

    offsets: Tensor
    """(B + 1,), the row of each sentence's first token, and N."""
    places: Tensor
    """(N,), the index of each token in (B * T)."""
    sentences: int
    """B."""
    length: int
    """T, the length of the padded sentences."""

    @classmethod
    def of(cls, places: Tensor, sentences: int, length: int) -> "Rows":
        """Make the layout of the tokens at ``places`` (N,) in (B * T), which is sorted."""
        counts = torch.bincount(places // length, minlength=sentences)
        offsets = torch.zeros(sentences + 1, dtype=torch.int64, device=places.device)
        torch.cumsum(counts, 0, out=offsets[1:])
        return cls(offsets, places, sentences, length)

    @property
    def positions(self) -> Tensor:
        """The position of each token in its sentence, (N,)."""
        return self.places % self.length

    @property
    def mask(self) -> Tensor:
        """True at real tokens, (B, T)."""
        mask = torch.zeros(
            self.sentences * self.length, dtype=torch.bool, device=self.offsets.device
        )
        return mask.index_fill_(0, self.places, True).view(self.sentences, self.length)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (1, N, ...)."""
        return x.flatten(0, 1).index_select(0, self.places).unsqueeze(0)

    def unpack(self, x: Tensor) -> Tensor:
        """(1, N, ...) -> (B, T, ...); padding is 0."""
        padded = x.new_zeros(self.sentences * self.length, *x.shape[2:])
        return padded.index_copy(0, self.places, x[0]).unflatten(0, (self.sentences, self.length))


class MixedRows(NamedTuple):
    """The layouts of a packed target and of its source, for attention from one to the other."""

    target: Rows
    source: Rows


class PackedAttention(NamedTuple):
    """Which keys the queries of packed sentences attend to.

    A query attends to all keys of its own sentence in ``source``, and then to those in ``rows``.
    """

    width: int
    """Features of the queries."""
    heads: int
    rows: Rows
    """The layout of the queries, and of the keys and values beside them."""
    own: bool
    """Whether the queries attend to keys beside them, which follow them in the same tensor."""
    causal: bool
    """Whether they attend to those at their own and at earlier positions only."""
    source: Rows | None = None
    """The layout of keys and values in another tensor."""

    @property
    def random_stride(self) -> int:
        """Number of random elements for each query and head: the keys, up to a multiple of 4."""
        longest = self.rows.length * self.own
        if self.source is not None:
            longest += self.source.length
        return -(-longest // 4) * 4
