"""The stages of a training: their optimisers, schedules, batches and ends."""

import math

import torch

from fusetk.data.corpus import Corpus
from fusetk.data.corpus_weights import WeightedSpan, sampling_spans
from fusetk.data.sampler import UpdateBatches, batches, check_fits, pair_lengths, update_batches
from fusetk.errors import ConfigError
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.dropout import Dropout
from fusetk.training import optim, schedule
from fusetk.training.config import StageConfig, TrainingConfig
from fusetk.training.progress import Progress, stage_ended
from fusetk.training.schedule import Schedule
from fusetk.training.sharding import optimizer_groups


class Stages:
    """The stages of a training, applied to a model and its training pairs.

    Each method works on the stage in which ``progress`` is.
    """

    def __init__(self, config: TrainingConfig, model: Seq2Seq, width: int, corpus: Corpus):
        """``width`` is the width of the model; some schedules depend on it.

        Raises DataError if a sentence is longer than a batch of a stage. Raises ConfigError for
        sampling weights of an unknown corpus, or for a dropout rate of a stage without effect.
        """
        self.configs = config.stages
        self.seed = config.seed
        self.model = model
        self.width = width
        self.corpus = corpus
        # For each stage, the parts of the corpus to sample; empty for all pairs in equal shares.
        self.spans = [
            sampling_spans(corpus.parts, stage.weights, i) for i, stage in enumerate(self.configs)
        ]
        self._check_dropout()
        self._check_lengths()

    def _dropouts(self) -> list[Dropout]:
        return [module for module in self.model.modules() if isinstance(module, Dropout)]

    def _check_dropout(self) -> None:
        if any(module.base_rate for module in self._dropouts()):
            return
        for i, stage in enumerate(self.configs):
            if stage.dropout:
                raise ConfigError(
                    f"training.stages.{i}.dropout is {stage.dropout}, but every dropout rate of "
                    "the model is 0, and a stage does not change such rates: "
                    "set model.dropout, or remove dropout from the stage"
                )

    def _check_lengths(self) -> None:
        for corpus in self.corpus.variants():
            for stage, spans in zip(self.configs, self.spans, strict=True):
                lengths = pair_lengths(corpus.source.lengths, corpus.target.lengths, stage.batch)
                longest = (
                    int(lengths[start:end].max(initial=0))
                    for start, end, _ in spans or [WeightedSpan(0, len(corpus), 1.0)]
                )
                check_fits(max(longest), stage.batch)

    def config(self, progress: Progress) -> StageConfig:
        return self.configs[progress.stage]

    def is_last(self, progress: Progress) -> bool:
        return progress.stage + 1 == len(self.configs)

    def optimizer(self, progress: Progress) -> torch.optim.Optimizer:
        """Build the optimiser, without the state of earlier updates."""
        return optim.build(
            self.config(progress).optimizer, optimizer_groups(self.model.parameters())
        )

    def schedule(self, progress: Progress) -> Schedule:
        return schedule.build(self.config(progress).schedule, self.width)

    def set_dropout(self, progress: Progress) -> None:
        """Set the dropout rates of the model to those of the stage."""
        for module in self._dropouts():
            module.set_rate(self.config(progress).dropout)

    def updates(self, progress: Progress, corpus: Corpus) -> UpdateBatches:
        """Return the batches of each update of the current epoch.

        ``corpus`` holds the pairs of this epoch, see ``Corpus.of_epoch``.
        """
        stage = self.config(progress)
        epoch_batches = batches(
            corpus.source.lengths,
            corpus.target.lengths,
            stage.batch,
            self.seed,
            progress.epoch,
            self.spans[progress.stage],
        )
        return update_batches(epoch_batches, stage.batch.accumulate)

    def updates_left(self, progress: Progress, updates_in_epoch: int) -> float:
        """Return the number of remaining updates of the stage; infinite if it is unknown."""
        end = self.config(progress).end
        # Epochs may differ in length; the later ones count as the current one.
        epochs = (end.epochs or math.inf) - progress.stage_epoch
        by_epochs = epochs * updates_in_epoch - progress.position
        return min(by_epochs, (end.updates or math.inf) - progress.stage_update)

    def ended(self, progress: Progress) -> bool:
        """Whether one of the limits of the stage is reached."""
        return stage_ended(self.config(progress).end, progress, self.schedule(progress))
