"""Batches that are too large for the memory of the device: they are split into halves."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fusetk.data.corpus import Corpus
from fusetk.data.sampler import Indices
from fusetk.errors import FusetkError


class BatchSplitter:
    """Splits batches until they are smaller than the smallest batch that did not fit into memory.

    ``notify`` receives one message, at the first batch that did not fit. With ``sharded``, all
    processes must compute the same number of batches, so none can be split.
    """

    def __init__(self, corpus: Corpus, sharded: bool, notify: Callable[[str], None]):
        self.corpus = corpus
        self.sharded = sharded
        self.notify = notify
        self.limit = math.inf  # target tokens of the smallest batch that did not fit

    def split(self, pairs: Indices) -> list[Indices]:
        """Return the batch, or parts of it with fewer target tokens than the limit."""
        if len(pairs) < 2 or self._target_tokens(pairs) < self.limit:
            return [pairs]
        return [part for half in np.array_split(pairs, 2) for part in self.split(half)]

    def split_after_failure(
        self, batches: Sequence[Indices], error: RuntimeError, update: int
    ) -> list[Indices]:
        """Lower the limit to the largest of the batches of an update, and split them.

        Raises FusetkError if that batch is a single pair, or if the model is sharded.
        """
        largest = max(batches, key=self._target_tokens)
        tokens = self._target_tokens(largest)
        reason = str(error).splitlines()[0]
        if self.sharded:
            raise FusetkError(
                f"a batch of {tokens} target tokens does not fit into memory ({reason}), and with "
                "training.shard it cannot be split into halves: "
                "halve training.stages.N.batch.size and double accumulate, "
                "set checkpoint on encoder and decoder, or drop long sentences"
            )
        if len(largest) == 1:
            sides = (self.corpus.source, self.corpus.target)
            source, target = (int(side.lengths[largest].max()) for side in sides)
            raise FusetkError(
                f"training pair {int(largest[0]) + 1} ({source} source and {target} target tokens) "
                f"does not fit into memory alone ({reason}): "
                "drop long sentences in data.steps (filter) or data.bpe.max_subwords, "
                "set checkpoint on encoder and decoder, or use a smaller model"
            )
        if self.limit == math.inf:
            self.notify(
                f"update {update}: a batch of {tokens} target tokens does not fit into memory "
                f"({reason}); batches of this size are split into halves from now on. To avoid the "
                "failed attempt, lower training.stages.N.batch.size and raise accumulate"
            )
        self.limit = min(self.limit, tokens)
        return [part for pairs in batches for part in self.split(pairs)]

    def _target_tokens(self, pairs: Indices) -> int:
        return int(self.corpus.target.lengths[pairs].sum())
