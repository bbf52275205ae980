"""Random training batches of the tiny models in ``tests.contracts.systems``."""

import torch
from torch import Tensor

from fusetk.data.batch import Batch
from tests.contracts.systems import SOURCE_SIZE, TARGET_SIZE


def random_batch(sentences: int = 5, source: int = 7, target: int = 6) -> Batch:
    """Make a batch of pairs of 2 to ``source`` and 2 to ``target`` random tokens.

    It has no ``lengths``, and the rows of ``tgt_in`` have no padding.
    """
    generator = torch.Generator().manual_seed(3)

    def ids(size: int, length: int) -> Tensor:
        return torch.randint(4, size, (sentences, length), generator=generator)

    def mask(length: int) -> Tensor:
        lengths = torch.randint(2, length + 1, (sentences, 1), generator=generator)
        return torch.arange(length) < lengths

    src_mask = mask(source)
    tgt_mask = mask(target)
    return Batch(
        src=ids(SOURCE_SIZE, source) * src_mask,
        src_mask=src_mask,
        tgt_in=ids(TARGET_SIZE, target),
        tgt_out=ids(TARGET_SIZE, target),
        target_index=tgt_mask.flatten().nonzero()[:, 0],
    )


def with_lengths(batch: Batch) -> Batch:
    """Return a batch with the source and target lengths that ``collate`` adds."""
    rows = batch.target_index // batch.tgt_out.shape[1]
    lengths = batch.src_mask.sum(1), rows.bincount(minlength=len(batch.src))
    return batch._replace(lengths=lengths)


def select_sentences(batch: Batch, rows: slice) -> Batch:
    """Return some sentences of a batch."""
    mask = torch.zeros(batch.tgt_out.shape, dtype=torch.bool)
    mask.view(-1)[batch.target_index] = True
    real = mask[rows].flatten().nonzero()[:, 0]
    return Batch(*(tensor[rows] for tensor in batch[:4]), real)
