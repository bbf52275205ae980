"""Validation: loss, perplexity, accuracy, and metrics of translations, on held-out text."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fusetk import display
from fusetk.data.batch import collate
from fusetk.data.batch_config import BatchConfig
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.sampler import Indices, cut
from fusetk.data.steps.lowercase import lowercases_target
from fusetk.data.text import read_lines
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.translate import Translator
from fusetk.display import Task
from fusetk.errors import ConfigError, DataError, Diverged
from fusetk.evaluation.forward_trace import UNKNOWN_WORDS
from fusetk.evaluation.layer_shares import mean_shares
from fusetk.evaluation.metric import MetricOptions, score_of, statistics_of
from fusetk.evaluation.metrics import make_metrics, scores_tokens
from fusetk.evaluation.multi_bleu import MultiBleu
from fusetk.fusion.base import fusions_of_stacks
from fusetk.models.seq2seq import Seq2Seq
from fusetk.processes import ALONE, World
from fusetk.training.buffers import SavedBuffers
from fusetk.training.update import autocast, batch_loss
from fusetk.training.validation_config import (
    BLEU,
    ValidationConfig,
    perplexity,
    scores_translations,
)


class LossSums(NamedTuple):
    """Sums over target tokens."""

    nll: float  # natural logarithm, without label smoothing
    correct: float  # number of tokens that are predicted correctly
    tokens: int


class PartialResults(NamedTuple):
    """The results of one process."""

    sums: LossSums  # of its part of the validation corpus
    # By position in the corpus, before the steps are undone. Empty without a metric of
    # translations, None if training has diverged.
    translations: dict[int, str] | None
    train: LossSums | None = None  # of the training pairs; None without ``train_pairs``
    # Fusion -> layer -> share; None without ``share_pairs``, and in processes other than rank 0.
    layer_shares: dict[str, dict[str, float]] | None = None


class TranslationMetric:
    """A metric of translations, with the references of the validation text (one or more)."""

    def __init__(self, name: str, folder: Path, pipeline: Pipeline):
        """``name`` is the metric of a config; ``folder`` is the prepared folder.

        Raises DataError if a metric outside fusetk cannot be built.
        """
        name = MultiBleu.name if name == BLEU else name
        reads_words = scores_tokens(name)
        self.convert = pipeline.unsplit if reads_words else pipeline.raw
        ending = "txt" if reads_words else "raw"
        stem = f"valid.{pipeline.target_language}"
        files = [folder / f"{stem}.{ending}"]
        while (path := folder / f"{stem}{len(files)}.{ending}").exists():
            files.append(path)
        self.references = [
            [
                pipeline.unsplit(line) if reads_words else line
                for line in read_lines(file, bom=False)
            ]
            for file in files
        ]
        lowercase = not reads_words and lowercases_target(pipeline.steps)
        [self.metric] = make_metrics(self.references, [name], MetricOptions(lowercase=lowercase))

    def score(self, translations: Sequence[str]) -> float:
        """Return the score of translations before the steps are undone."""
        lines = [self.convert(line) for line in translations]
        return score_of(self.metric, statistics_of(self.metric, lines)).value


class Validator:
    """The validation corpus, and the computation of the metrics."""

    def __init__(
        self, config: ValidationConfig, search: SearchConfig, folder: Path, pipeline: Pipeline
    ):
        """``folder`` is the prepared folder, and ``search`` has the settings for translations.

        Raises ConfigError if there are no validation pairs, and DataError if a metric outside
        fusetk cannot be built.
        """
        self.corpus = Corpus.open(folder, "valid")
        if not len(self.corpus):
            raise ConfigError(
                f"the validation set in {folder} is empty: name a text with sentences in data.valid"
            )
        self.config = config
        self.search = search
        self.pipeline = pipeline
        names = [BLEU] if config.bleu else []
        names += [config.metric] if scores_translations(config.metric) else []
        self.metrics = {name: TranslationMetric(name, folder, pipeline) for name in names}
        self.batches = self._batches(self.corpus, np.arange(len(self.corpus)))
        self.share_pairs = _evenly_spaced(self.corpus, config.share_pairs or 0)
        self.train_corpus: Corpus | None = None
        self.train_batches: list[Indices] = []
        if config.train_pairs:
            self.train_corpus = Corpus.open(folder, "train")
            pairs = _evenly_spaced(self.train_corpus, config.train_pairs)
            self.train_batches = self._batches(self.train_corpus, pairs)

    def _batches(self, corpus: Corpus, pairs: Indices) -> list[Indices]:
        """Return the pairs in batches of similar target lengths."""
        lengths = corpus.target.lengths[pairs]
        order = np.argsort(lengths, kind="stable")
        batch = BatchConfig(size=max(self.config.tokens, int(lengths.max())))
        return [pairs[order[start:end]] for start, end in cut(lengths[order], batch)]

    def validate_part(self, model: Seq2Seq, precision: str, world: World = ALONE) -> PartialResults:
        """Validate on this process' part of the corpus.

        The model is in training mode afterwards.
        """
        model.eval()
        device = next(model.parameters()).device
        try:
            with display.task("validation", "pairs", self._num_pairs()) as done:
                with torch.inference_mode(), autocast(device, precision):
                    sums = self._loss_sums(model, world, self.corpus, self.batches, done)
                    train = self._train_sums(model, world, done)
                model.eval()
                translations = self._translations(model, world, done) if self.metrics else {}
                shares = self._layer_shares(model, done) if world.first else None
            return PartialResults(sums, translations, train, shares)
        finally:
            model.train()

    def _num_pairs(self) -> int:
        """Return the number of pairs that are processed; a pair counts once for each use."""
        pairs = len(self.corpus) * (2 if self.metrics else 1)
        return pairs + sum(map(len, self.train_batches)) + len(self.share_pairs)

    def combine(self, parts: Sequence[PartialResults]) -> dict[str, float]:
        """Return the metrics over the parts of all processes: loss per token, ppl and accuracy.

        The metrics of translations that are configured follow. They are NaN if training has
        diverged.
        """
        loss, accuracy = _means([part.sums for part in parts])
        results = {"loss": loss, "ppl": perplexity(loss), "accuracy": accuracy}
        if self.train_corpus is not None:
            train = _means([part.train for part in parts if part.train is not None])
            results["train_loss"], results["train_accuracy"] = train
        if self.metrics:
            results |= self._scores([part.translations for part in parts])
        return results

    def _scores(self, parts: Sequence[dict[int, str] | None]) -> dict[str, float]:
        translations: dict[int, str] = {}
        for part in parts:
            if part is None:
                return dict.fromkeys(self.metrics, math.nan)
            translations |= part
        hypotheses = [translations[i] for i in range(len(self.corpus))]
        return {name: metric.score(hypotheses) for name, metric in self.metrics.items()}

    def _train_sums(self, model: Seq2Seq, world: World, done: Task) -> LossSums | None:
        """Return the sums of the training pairs; None without ``train_pairs``."""
        if self.train_corpus is None:
            return None
        buffers = SavedBuffers(model)
        model.train(self.config.train_dropout)
        # Updates do not depend on the random numbers before them: each sets its own seed.
        torch.manual_seed(world.rank)
        try:
            return self._loss_sums(model, world, self.train_corpus, self.train_batches, done)
        finally:
            buffers.restore()

    def _loss_sums(
        self,
        model: Seq2Seq,
        world: World,
        corpus: Corpus,
        batches: Sequence[Indices],
        done: Task,
    ) -> LossSums:
        """Return the sums of this process' part; ``done`` counts the pairs of all processes."""
        device = next(model.parameters()).device
        nll = 0.0
        correct = 0.0
        tokens = 0
        for indices in batches[world.rank :: world.size]:
            batch = collate(corpus, indices).to(device)
            sums = batch_loss(model, batch, 0.0)
            nll += float(sums.nll)
            correct += float(sums.correct)
            tokens += len(batch.target_index)
            done.advance(len(indices) * world.size)
        return LossSums(nll, correct, tokens)

    def _layer_shares(self, model: Seq2Seq, done: Task) -> dict[str, dict[str, float]] | None:
        """Return the share of each layer in each fusion.

        The result is None without ``share_pairs``, and if training has diverged.
        """
        if not len(self.share_pairs):
            return None
        source, target = self.corpus.source, self.corpus.target
        pairs = [(source[i].tolist(), target[i][:-1].tolist()) for i in self.share_pairs]
        done.advance(len(pairs))
        with suppress(Diverged):
            return mean_shares(model, pairs)
        return None

    def _translations(self, model: Seq2Seq, world: World, done: Task) -> dict[int, str] | None:
        """Return the translations of this process' part; None if training has diverged."""
        translator = Translator([model], self.pipeline, self.search, scores=False)
        translator.on_batch = lambda sentences: done.advance(sentences * world.size)
        # Each of n processes takes every n-th sentence in order of length, so that all have similar
        # work.
        positions = np.concatenate(self.batches)[world.rank :: world.size].tolist()
        try:
            hypotheses = translator.translate_ids(
                [self.corpus.source[i] for i in positions], numbers=[i + 1 for i in positions]
            )
        except Diverged:
            return None
        vocabulary = self.pipeline.target_vocab
        texts = [
            self.pipeline.join(vocabulary.decode(n_best[0].ids)) if n_best else ""
            for n_best in hypotheses
        ]
        return dict(zip(positions, texts, strict=True))


def _evenly_spaced(corpus: Corpus, number: int) -> Indices:
    """Return the indices of ``number`` evenly spaced pairs, or of all pairs if there are fewer."""
    number = min(number, len(corpus))
    return np.unique(np.linspace(0, len(corpus) - 1, number).round().astype(np.int64))


def check_shares(model: Seq2Seq) -> None:
    """Raise ConfigError if the shares of the layers cannot be computed."""
    if not fusions_of_stacks(model):
        raise ConfigError(
            "training.validation.share_pairs needs a fusion of several layers, which this model "
            "does not have: set model.encoder.fuse or model.decoder.fuse (model.stack.fuse of "
            "coordinated), or remove share_pairs"
        )
    try:
        mean_shares(model, [UNKNOWN_WORDS])
    except DataError as error:
        raise ConfigError(f"training.validation.share_pairs: {error}; remove the key") from None


def _means(parts: Sequence[LossSums]) -> tuple[float, float]:
    """Return the loss per token and the accuracy over the parts of all processes."""
    tokens = sum(part.tokens for part in parts)
    loss = math.fsum(part.nll for part in parts) / tokens
    return loss, math.fsum(part.correct for part in parts) / tokens
