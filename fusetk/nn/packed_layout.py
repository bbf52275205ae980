"""Packed sentences: tensors that hold real tokens only, without padding."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusetk.nn.fused import products
from fusetk.nn.precision import product_dtype, uses_onednn

# On CPU, oneDNN compiles a matrix product before the first use of its shape, and keeps the products
# that were used last. The number of rows is rounded up to a multiple of this number, so that shapes
# recur. Kernels that replace oneDNN compile nothing, so with them the number is not rounded.
ROW_MULTIPLE = 32


def row_multiple(x: Tensor) -> int:
    """Return the multiple to which the rows of products with ``x`` are rounded up."""
    dtype = product_dtype(x)
    by_onednn = x.device.type == "cpu" and uses_onednn(dtype) and not products.replaced(dtype)
    return ROW_MULTIPLE if by_onednn else 1


class PackedLayout(NamedTuple):
    """The layout of the real tokens of B sentences in a tensor (1, N, D).

    The sentences follow each other. The last token may be repeated, so that N is a multiple of a
    number; the results of the repetitions are not used. Modules that treat each position separately
    need no layout: for them the tensor is one sentence of N positions. Attention receives the
    layout in place of a mask.
    """

    offsets: Tensor
    """(B + 1,), the row of each sentence's first token, and the number of tokens."""
    places: Tensor
    """(N,), the index of each row's token in (B * T)."""
    tokens: int
    """Number of tokens; the rows after them are repetitions."""
    sentences: int
    """B."""
    length: int
    """T, the length of the padded sentences."""

    @classmethod
    def of(cls, places: Tensor, shape: Sequence[int], multiple: int = 1) -> "PackedLayout":
        """Return the layout of the tokens with the sorted indices ``places`` (n,) in (B * T).

        ``shape`` is (B, T). N is a multiple of ``multiple``.
        """
        sentences, length = shape
        counts = torch.bincount(places // length, minlength=sentences)
        offsets = torch.zeros(sentences + 1, dtype=torch.int64, device=places.device)
        torch.cumsum(counts, 0, out=offsets[1:])
        tokens = len(places)
        repetitions = places[-1:].expand(-tokens % multiple)
        return cls(offsets, torch.cat((places, repetitions)), tokens, sentences, length)

    @property
    def positions(self) -> Tensor:
        """The position of each row's token in its sentence, (N,)."""
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
        padded = padded.index_copy(0, self.places[: self.tokens], x[0, : self.tokens])
        return padded.unflatten(0, (self.sentences, self.length))


class PackedSides(NamedTuple):
    """The layouts of a packed target and of its source, for attention from one to the other."""

    target: PackedLayout
    source: PackedLayout


class AttentionLayout(NamedTuple):
    """The layout of queries, keys and values for the attention of packed sentences.

    A query attends to all keys of its own sentence in ``source``, and then to those in ``queries``.
    """

    width: int
    """Features of the queries."""
    heads: int
    queries: PackedLayout
    """The layout of the queries, and of the keys and values beside them."""
    own: bool
    """Whether a query attends to its own sentence. The keys and values of the sentence are in the
    same tensor, in the columns after the queries."""
    causal: bool
    """Whether a query attends only to its own and earlier positions of its own sentence. It has no
    effect without ``own``."""
    source: PackedLayout | None = None
    """The layout of keys and values in another tensor."""

    @property
    def random_stride(self) -> int:
        """Number of random elements for each query and head: the keys, up to a multiple of 4."""
        longest = self.queries.length * self.own
        if self.source is not None:
            longest += self.source.length
        return -(-longest // 4) * 4
