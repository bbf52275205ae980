"""Sentence pairs as padded tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusetk.data.corpus import Corpus, Sentences
from fusetk.errors import DataError
from fusetk.special_tokens import BOS, PAD


class Batch(NamedTuple):
    """B pairs of sentences, padded at the right."""

    src: Tensor  # (B, S), each row ends with EOS
    src_mask: Tensor  # (B, S), False at padding
    tgt_in: Tensor  # (B, T), each row begins with BOS
    tgt_out: Tensor  # (B, T), each row ends with EOS
    target_index: Tensor  # (N,), indices of the N target tokens without padding in (B * T,)
    # Source and target lengths (B,), always in the memory of the host: a model that needs them does
    # not have to wait for the device. None: the model reads them from the masks.
    lengths: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls, src: Tensor, src_mask: Tensor, tgt_in: Tensor, tgt_out: Tensor, tgt_mask: Tensor
    ) -> "Batch":
        """Return the batch of ids (B, S) or (B, T) and their masks, in the memory of the host."""
        lengths = (src_mask.sum(1), tgt_mask.sum(1))
        return cls(src, src_mask, tgt_in, tgt_out, tgt_mask.flatten().nonzero()[:, 0], lengths)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors but the lengths."""
        return self[:5]

    def to(self, device: torch.device) -> "Batch":
        moved = [tensor.to(device, non_blocking=True) for tensor in self.tensors]
        return Batch._make([*moved, self.lengths])


def pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Pad rows of ids at the right; return ids (B, longest) and mask (B, longest)."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.full(mask.shape, PAD, dtype=torch.int64)
    ids[mask] = torch.tensor([i for row in rows for i in row], dtype=torch.int64)
    return ids, mask


def padded_length(longest: int, multiple: int, limit: int | None) -> int:
    """Return ``longest``, rounded up to ``multiple`` unless this exceeds ``limit``."""
    padded = -(-longest // multiple) * multiple
    return padded if limit is None or padded <= limit else longest


def gather(
    sentences: Sentences, indices: NDArray[np.int64], multiple: int = 1, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return sentences of a corpus as padded ids (B, longest) and their mask (B, longest).

    ``longest`` is rounded up to ``multiple`` tokens unless this exceeds ``limit``. Raises DataError
    for an id that is not in the vocabulary.
    """
    starts = np.asarray(sentences.offsets[indices])
    lengths = np.asarray(sentences.offsets[indices + 1]) - starts
    columns = np.arange(padded_length(int(lengths.max()), multiple, limit))
    mask = columns < lengths[:, None]
    ids = np.full(mask.shape, PAD, dtype=np.int64)
    tokens = sentences.ids[(starts[:, None] + columns)[mask]]
    if sentences.entries is not None and (largest := int(tokens.max())) >= sentences.entries:
        raise DataError(
            f"{sentences.name} has the id {largest}, but the vocabulary has {sentences.entries} "
            "entries; run fusetk prep again"
        )
    ids[mask] = tokens
    return torch.from_numpy(ids), torch.from_numpy(mask)


def collate(
    corpus: Corpus, indices: NDArray[np.int64], multiple: int = 1, limit: int | None = None
) -> Batch:
    """Return the pairs ``indices`` of a corpus as a batch.

    ``multiple`` and ``limit`` are the arguments of ``gather``, which raises DataError.
    """
    src, src_mask = gather(corpus.source, indices, multiple, limit)
    tgt_out, tgt_mask = gather(corpus.target, indices, multiple, limit)
    tgt_in = torch.cat((torch.full_like(tgt_out[:, :1], BOS), tgt_out[:, :-1]), dim=1)
    tgt_in.masked_fill_(~tgt_mask, PAD)
    return Batch.of(src, src_mask, tgt_in, tgt_out, tgt_mask)
