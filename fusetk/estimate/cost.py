"""Estimates of a training: memory, updates, hours and money."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fusetk import system
from fusetk.data import integrity, manifest
from fusetk.data.batch_config import BatchConfig
from fusetk.data.corpus import Corpus
from fusetk.data.corpus_weights import sampling_spans
from fusetk.data.sampler import batches, split_size
from fusetk.errors import ConfigError, DataError, quantity
from fusetk.estimate.operations import BatchShape, batch_cost, optimizer_bytes
from fusetk.models import Seq2Seq
from fusetk.recipe import Recipe
from fusetk.training import optim
from fusetk.training.config import StageConfig

SAMPLES = 6  # batches that are counted
LENGTH = 25  # tokens of a sentence, if the text is not prepared
ADVICE = "run fusetk prep, or give --src-length, --tgt-length and --pairs"


class TextLengths(NamedTuple):
    """The lengths of the training pairs: of each pair of a corpus, or only the means."""

    corpus: Corpus | None  # None: the means are used
    source: float  # mean number of tokens with EOS
    target: float
    pairs: int | None  # None: unknown


class StageCost(NamedTuple):
    """The cost of a stage of training."""

    batch: str  # size of a batch, for the user
    target_tokens: float  # target tokens of an update
    multiply_adds: float  # multiply-adds of an update
    activations: int  # bytes for the largest of the counted batches
    updates: int | None  # the largest number; None: it is unknown
    hours_limit: float | None  # `end.hours` of the stage; None: it has none


class TrainingCost(NamedTuple):
    """The cost of a training, without validation, checkpoints and translation."""

    parameters: int
    state: int  # bytes of weights, gradients, optimiser and moving average
    stages: list[StageCost]

    @property
    def memory(self) -> int:
        """Bytes of a process in float32, with attention that keeps its weights."""
        return self.state + max(stage.activations for stage in self.stages)


def text_of(
    recipe: Recipe, source: float | None, target: float | None, pairs: int | None
) -> TextLengths:
    """Return the lengths of the prepared text of a recipe, or means if the caller gives a number.

    ``source`` and ``target`` are mean lengths. Numbers that the caller does not give are those of
    the prepared text. If the text is not prepared, the default length is LENGTH. Raises DataError
    if a number is missing and the text was prepared with other settings.
    """
    folder = Path(recipe.data.folder)
    if (source and target and pairs) or not (folder / manifest.NAME).is_file():
        return TextLengths(None, source or LENGTH, target or LENGTH, pairs)
    integrity.check_settings(recipe.data, manifest.read(folder), ADVICE)
    corpus = Corpus.open(folder, "train").of_epoch(0)
    src_mean, tgt_mean = (float(side.lengths.mean()) for side in (corpus.source, corpus.target))
    if source is None and target is None and pairs is None:
        return TextLengths(corpus, src_mean, tgt_mean, len(corpus))
    return TextLengths(None, source or src_mean, target or tgt_mean, pairs or len(corpus))


def estimate(recipe: Recipe, sizes: tuple[int, int], text: TextLengths) -> TrainingCost:
    """Return the cost of a recipe's training with these vocabulary sizes.

    Raises DataError if a sentence or the mean length has more tokens than the model has positions.
    """
    model = system.build_shapes(recipe, *sizes).train()
    _check_lengths(text, model.max_positions)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    copies = 3 if recipe.training.ema else 2  # weights, gradients, and the moving average
    optimizers = [
        optimizer_bytes(optim.build(stage.optimizer, model.parameters()))
        for stage in recipe.training.stages
    ]
    smoothing = recipe.training.label_smoothing
    return TrainingCost(
        parameters=sum(p.numel() for p in model.parameters()),
        state=copies * weights + max(optimizers),
        stages=[
            _stage_cost(model, number, stage, text, smoothing, recipe.training.seed)
            for number, stage in enumerate(recipe.training.stages)
        ],
    )


def _check_lengths(text: TextLengths, max_positions: int | None) -> None:
    if text.corpus is not None:
        integrity.check_lengths(max_positions, [text.corpus])
        return
    length = round(max(text.source, text.target))
    if max_positions is not None and length > max_positions:
        raise DataError(
            f"sentences of {length} tokens do not fit the {max_positions} positions of the model: "
            "raise model.max_positions, or give smaller --src-length and --tgt-length"
        )


def _stage_cost(
    model: Seq2Seq, number: int, stage: StageConfig, text: TextLengths, smoothing: float, seed: int
) -> StageCost:
    shapes, count = sample_batches(stage.batch, text, seed, stage.weights, number)
    costs = [batch_cost(model, shape, smoothing) for shape in shapes]
    in_update = batches_in_update(stage.batch.accumulate, count)
    tokens = float(np.mean([shape.target_tokens for shape in shapes]))
    pairs = float(np.mean([len(shape.target) for shape in shapes]))
    return StageCost(
        batch=f"{round(in_update, 1):g} x {tokens:,.0f} target tokens "
        f"({quantity(round(pairs), 'pair')})",
        target_tokens=in_update * tokens,
        multiply_adds=in_update * float(np.mean([cost.multiply_adds for cost in costs])),
        activations=max(cost.activations for cost in costs),
        updates=_updates(stage, count),
        hours_limit=stage.end.hours,
    )


def batches_in_update(accumulate: int, in_epoch: int | None) -> float:
    """Return the mean number of batches of an update; the last one of an epoch may have fewer."""
    return in_epoch / -(-in_epoch // accumulate) if in_epoch else accumulate


def _updates(stage: StageConfig, batches_in_epoch: int | None) -> int | None:
    """Return the largest number of updates of a stage; None if it is unknown."""
    limits = [stage.end.updates] if stage.end.updates else []
    if stage.end.epochs and batches_in_epoch:
        in_epoch = -(-batches_in_epoch // stage.batch.accumulate)
        limits.append(stage.end.epochs * in_epoch)
    return min(limits, default=None)


def sample_batches(
    config: BatchConfig,
    text: TextLengths,
    seed: int,
    weights: Mapping[str, float] | None = None,
    stage: int = 0,
) -> tuple[list[BatchShape], int | None]:
    """Return the shapes of some batches of the first epoch, and the number of batches in an epoch.

    ``weights`` are the sampling weights of the training corpora in the config of ``stage``, the
    number of a stage. The number of batches is None if the number of pairs is unknown. Raises
    DataError if a sentence is longer than a batch, and ConfigError if there are weights and a
    number of pairs, but no prepared text.
    """
    if text.corpus is None:
        if text.pairs and any(weight != 1 for weight in (weights or {}).values()):
            raise ConfigError(
                f"training.stages.{stage}.weights need the prepared text: prepare it and omit "
                f"--src-length, --tgt-length and --pairs, or add --set "
                f"training.stages.{stage}.weights=null and give the pairs of an epoch in --pairs"
            )
        batch = mean_batch(config, text)
        return [batch], text.pairs and -(-text.pairs // len(batch.target))
    source, target = text.corpus.source.lengths, text.corpus.target.lengths
    spans = sampling_spans(text.corpus.parts, weights, stage)
    order = batches(source, target, config, seed, 0, spans)
    if not len(order):
        raise DataError("the prepared training text has no pair: check data.train and data.steps")
    places = np.linspace(0, len(order) - 1, min(SAMPLES, len(order))).round().astype(int)
    shapes = [
        BatchShape(source[pairs].tolist(), target[pairs].tolist())
        for pairs in (order[int(place)] for place in places)
    ]
    return shapes, len(order)


def mean_batch(config: BatchConfig, text: TextLengths) -> BatchShape:
    """Return a batch of pairs with the mean lengths."""
    source, target = round(text.source), round(text.target)
    lengths = {
        "sentences": 1,
        "tokens": target,
        "longest": max(source, target),
        "both": source + target,
    }
    pairs = max(1, config.size // lengths[config.unit])
    if config.token_limit:
        pairs = split_size(pairs, max(source, target), config.token_limit)
    return BatchShape([source] * pairs, [target] * pairs)


def stage_hours(stage: StageCost, multiply_adds_per_second: float) -> float | None:
    """Return the duration of a stage; None if it is unknown."""
    limits = [] if stage.hours_limit is None else [stage.hours_limit]
    if stage.updates is not None:
        limits.append(stage.updates * stage.multiply_adds / multiply_adds_per_second / 3600)
    return min(limits, default=None)


def training_hours(stages: Sequence[StageCost], multiply_adds_per_second: float) -> float | None:
    """Return the duration of all stages; None if that of a stage is unknown."""
    hours = [stage_hours(stage, multiply_adds_per_second) for stage in stages]
    known = [value for value in hours if value is not None]
    return sum(known) if len(known) == len(hours) else None
