"""The gradients of an update. Batches that are too large for memory are split into halves."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from fusetk.data.batch import Batch, collate
from fusetk.data.corpus import Corpus
from fusetk.data.sampler import Indices
from fusetk.errors import FusetkError, first_line, out_of_memory
from fusetk.models.seq2seq import Seq2Seq
from fusetk.processes import World
from fusetk.training.buffers import SavedBuffers
from fusetk.training.compiling import CompilationFailed, compile_failure
from fusetk.training.config import TrainingConfig
from fusetk.training.cuda_graphs import CudaGraphs
from fusetk.training.loss import Loss
from fusetk.training.parallel import local_batches
from fusetk.training.update import accumulate_gradients, length_multiple


class BatchSplitter:
    """Division of batches into parts smaller than the smallest batch that did not fit into memory.

    ``notify`` receives messages for the log. With ``sharded``, all processes must compute the same
    number of batches, so batches cannot be split.
    """

    def __init__(self, sharded: bool, notify: Callable[[str], None]):
        self.sharded = sharded
        self.notify = notify
        self.limit = math.inf  # target tokens of the smallest batch that did not fit

    def split(self, corpus: Corpus, pairs: Indices) -> list[Indices]:
        """Return the batch, or parts of it with fewer target tokens than the limit."""
        if len(pairs) < 2 or _target_tokens(corpus, pairs) < self.limit:
            return [pairs]
        return [part for half in np.array_split(pairs, 2) for part in self.split(corpus, half)]

    def split_after_failure(
        self,
        corpus: Corpus,
        batches: Sequence[Indices],
        failed: Indices,
        error: RuntimeError,
        update: int,
    ) -> list[Indices]:
        """Lower the limit to the size of the batch that failed, and split the batches of an update.

        Raises FusetkError if that batch is a single pair, or if the model is sharded.
        """
        tokens = _target_tokens(corpus, failed)
        reason = first_line(error)
        if self.sharded:
            raise FusetkError(
                f"a batch of {tokens} target tokens does not fit into memory ({reason}), and with "
                "training.shard it cannot be split into halves: "
                "halve training.stages.N.batch.size and double accumulate, "
                "set checkpoint on encoder and decoder, or drop long sentences"
            )
        if len(failed) == 1:
            sides = (corpus.source, corpus.target)
            source, target = (int(side.lengths[failed].max()) for side in sides)
            raise FusetkError(
                f"training pair {int(failed[0]) + 1} ({source} source and {target} target tokens) "
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
        return [part for pairs in batches for part in self.split(corpus, pairs)]


def _target_tokens(corpus: Corpus, pairs: Indices) -> int:
    return int(corpus.target.lengths[pairs].sum())


def seed_of_update(seed: int, updates: int, rank: int) -> int:
    """Return the seed of a process for the next update; ``updates`` were made before it.

    PyTorch's generator on CPU uses only the lowest 32 bits of a seed, so ranks differ in them.
    """
    return seed * 1_000_003 + updates + rank * 0x9E3779B9  # 2 ** 32 divided by the golden ratio


class GradientComputer:
    """Computation of this process' part of the gradients of an update."""

    def __init__(
        self,
        config: TrainingConfig,
        model: Seq2Seq,
        world: World,
        splitter: BatchSplitter,
    ):
        self.config = config
        self.model = model
        self.world = world
        self.splitter = splitter
        self.device = next(model.parameters()).device
        self.buffers = SavedBuffers(model)
        """Copies of the persistent buffers. ``save`` must be called before ``compute``."""
        self.graphs = CudaGraphs.of(model, config)

    def delete_graphs(self) -> bool:
        """Delete the CUDA graphs, whose memory no other computation can use.

        Return whether there were any.
        """
        if not (self.graphs and self.graphs.graphs):
            return False
        self.graphs.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return True

    def start_stage(self) -> None:
        """Delete the CUDA graphs, which contain the dropout rates of the stage before."""
        if self.graphs:
            self.graphs.clear()

    def compute(
        self, corpus: Corpus, indices: Sequence[Indices], tokens: int, updates: int, scale: float
    ) -> list[Loss]:
        """Compute gradients of the losses times ``scale / tokens``, and return the losses.

        ``indices`` are the batches of all processes: numbers of pairs of ``corpus``. ``updates`` is
        the number of updates before this one. If the memory does not suffice, CUDA graphs are
        deleted or batches are split, and the batches are computed again. Raises FusetkError if the
        memory does not suffice for a single pair, CompilationFailed if torch cannot compile the
        layers, and ConfigError if it cannot record the passes.
        """
        parts = [
            part
            for pairs in local_batches(self.world, indices)
            if len(pairs) or self.splitter.sharded
            for part in self.splitter.split(corpus, pairs)
        ]
        current: Indices = np.zeros(0, np.int64)  # the batch that is computed

        def batches() -> Iterator[Batch]:
            nonlocal current
            for current in parts:
                yield self._collate(corpus, current)

        while True:
            # Seed every update, so that checkpoints need no generator state. Each process has
            # its own dropout masks.
            torch.manual_seed(seed_of_update(self.config.seed, updates, self.world.rank))
            try:
                losses = self._add_gradients(batches(), tokens, scale)
                if self.world.size > 1:
                    # An optimiser must draw equal random numbers in all processes.
                    torch.manual_seed(seed_of_update(self.config.seed, updates, self.world.size))
                return losses
            except RuntimeError as error:
                parts = self._parts_after_failure(corpus, parts, current, error, updates + 1)
            if self.graphs:
                self.graphs.clear()  # the gradients get other tensors
            self.buffers.restore()
            self.model.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _add_gradients(self, batches: Iterable[Batch], tokens: int, scale: float) -> list[Loss]:
        """Add the gradients of batches in the memory of the host, and return their losses."""
        if self.graphs:
            add_gradients = self.graphs.add_gradients
            return [add_gradients(batch, scale / tokens) for batch in batches]
        return accumulate_gradients(
            self.model,
            (batch.to(self.device) for batch in batches),
            self.config.label_smoothing,
            self.config.precision,
            tokens,
            scale,
        )

    def _parts_after_failure(
        self,
        corpus: Corpus,
        parts: list[Indices],
        failed: Indices,
        error: RuntimeError,
        update: int,
    ) -> list[Indices]:
        """Return the batches to compute after the memory did not suffice for the batch ``failed``.

        If there are CUDA graphs, at most half as many are recorded from then on. If the first one
        does not fit, none is recorded. Without graphs, the batches are split. Raises any other
        ``error``.
        """
        if not out_of_memory(error):
            if message := compile_failure(error):
                raise CompilationFailed(message) from None
            raise error
        if self.graphs and (self.graphs.graphs or self.graphs.recording):
            self.graphs.halve_limit()
            self.splitter.notify(
                f"update {update}: the CUDA graphs do not fit into memory; from now on at most "
                f"{self.graphs.limit} shapes of batches are recorded. To avoid this, lower "
                "training.stages.N.batch.size"
            )
            return parts
        return self.splitter.split_after_failure(corpus, parts, failed, error, update)

    def _collate(self, corpus: Corpus, pairs: Indices) -> Batch:
        """Return a batch in the memory of the host.

        If a process has no pairs, its batch is one pair without target tokens in the loss. This
        occurs only with a sharded model.
        """
        graphs = self.graphs is not None
        multiple = length_multiple(self.device, self.config.precision, graphs)
        limit = self.model.max_positions
        if len(pairs):
            return collate(corpus, pairs, multiple, limit)
        batch = collate(corpus, np.zeros(1, np.int64), multiple, limit)
        return batch._replace(target_index=batch.target_index[:0])
