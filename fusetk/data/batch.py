"""Sentence pairs as padded tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusetk.data.corpus import Corpus, Sentences
from fusetk.data.vocab import BOS, PAD
from fusetk.errors import DataError


class Batch(NamedTuple):
    """B pairs, padded at the right; the mask is True at real tokens."""

    src: Tensor  # (B, S), the end mark last
    src_mask: Tensor  # (B, S)
    tgt_in: Tensor  # (B, T), the start mark first
    tgt_out: Tensor  # (B, T), the end mark last
    real: Tensor  # (N,), where the N real target tokens stand in a (B, T) tensor that is read row by row

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


def pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B, longest) and its mask."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.full(mask.shape, PAD, dtype=torch.int64)
    ids[mask] = torch.tensor([i for row in rows for i in row], dtype=torch.int64)
    return ids, mask


def gather(
    sentences: Sentences, indices: NDArray[np.int64], multiple: int = 1, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sentences of a corpus as one tensor (B, longest) and its mask, read in one go.

    The longest is padded to a multiple of so many tokens, where that does not pass ``limit``. Raises DataError for an id that the
    vocabulary has not.
    """
    starts = np.asarray(sentences.offsets[indices])
    lengths = np.asarray(sentences.offsets[indices + 1]) - starts
    longest = int(lengths.max())
    padded = -(-longest // multiple) * multiple
    columns = np.arange(padded if limit is None or padded <= limit else longest)
    mask = columns < lengths[:, None]
    ids = np.full(mask.shape, PAD, dtype=np.int64)
    found = sentences.ids[(starts[:, None] + columns)[mask]]
    if sentences.entries is not None and (largest := int(found.max())) >= sentences.entries:
        raise DataError(
            f"{sentences.name} has the id {largest} and the vocabulary {sentences.entries} entries; run fusetk prep again"
        )
    ids[mask] = found
    return torch.from_numpy(ids), torch.from_numpy(mask)


def collate(
    corpus: Corpus, indices: NDArray[np.int64], multiple: int = 1, limit: int | None = None
) -> Batch:
    """The pairs ``indices`` of a corpus as a batch; ``multiple`` and ``limit`` as in ``gather``."""
    src, src_mask = gather(corpus.source, indices, multiple, limit)
    tgt_out, tgt_mask = gather(corpus.target, indices, multiple, limit)
    tgt_in = torch.cat((torch.full_like(tgt_out[:, :1], BOS), tgt_out[:, :-1]), dim=1).masked_fill_(
        ~tgt_mask, PAD
    )
    return Batch(src, src_mask, tgt_in, tgt_out, tgt_mask.flatten().nonzero()[:, 0])
