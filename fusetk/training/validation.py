"""How good a model is on held-out text."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from fusetk.config import Config
from fusetk.data.batch import collate
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.data.sampler import BatchConfig, cut
from fusetk.data.text import read_lines
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.translate import Translator
from fusetk.errors import ConfigError
from fusetk.evaluation.metrics import corpus_bleu
from fusetk.models.seq2seq import Seq2Seq
from fusetk.processes import ALONE, World
from fusetk.training.step import autocast, batch_loss

Metric = Literal["loss", "ppl", "accuracy", "bleu"]
LOWER_IS_BETTER = {"loss", "ppl"}


class ValidationConfig(Config):
    """When and by what a model is judged in training."""

    every_updates: int | None = Field(None, ge=1)
    """Validate every so many updates."""
    every_epochs: int | None = Field(None, ge=1)
    """Validate every so many epochs; 1 if neither is given."""
    metric: Metric = "loss"
    """Decides which checkpoint is best and when to stop: loss and perplexity without label smoothing, per token; accuracy of single
    tokens given the reference prefix; BLEU of beam search (tokenised, multi-bleu's arithmetic). The loss decides between equal values."""
    bleu: bool = False
    """Translate the validation text each time, also when another metric decides."""
    tokens: int = Field(8192, ge=1)
    """Target tokens in a batch, for the losses."""


def rank(metric: str, results: Mapping[str, float]) -> tuple[float, float]:
    """Sort key of validation results, the best first: the metric, and the loss among equals. NaN is the worst."""
    sign = 1 if metric in LOWER_IS_BETTER else -1
    value, loss = sign * results.get(metric, math.nan), results.get("loss", math.nan)
    return math.inf if math.isnan(value) else value, math.inf if math.isnan(loss) else loss


class Part(NamedTuple):
    """Sums over some of the validation corpus."""

    nll: float
    correct: float
    tokens: int
    translations: dict[int, str]  # of the sentences at these places


class Validator:
    """The validation corpus, ready to judge a model again and again."""

    def __init__(
        self, config: ValidationConfig, search: SearchConfig, folder: Path, pipeline: Pipeline
    ):
        self.corpus = Corpus.open(folder, "valid")
        if not len(self.corpus):
            raise ConfigError(f"the validation set in {folder} is empty: give data.valid some text")
        self.config, self.search, self.pipeline = config, search, pipeline
        self.references = list(read_lines(folder / f"valid.{pipeline.target_language}.txt"))
        longest = int(self.corpus.target.lengths.max())
        order = np.argsort(self.corpus.target.lengths, kind="stable")
        cuts = cut(self.corpus.target.lengths[order], BatchConfig(size=max(config.tokens, longest)))
        self.batches = [order[start:end] for start, end in cuts]

    def part(
        self, model: Seq2Seq, device: torch.device, precision: str, world: World = ALONE
    ) -> "Part":
        """What one of several processes finds in its part of the corpus; the model is left in training mode."""
        model.eval()
        try:
            with torch.inference_mode(), autocast(device, precision):
                sums = self._sums(model, device, world)
            return Part(
                *sums,
                self._translations(model, world)
                if self.config.bleu or self.config.metric == "bleu"
                else {},
            )
        finally:
            model.train()

    def judge(self, parts: Sequence["Part"]) -> dict[str, float]:
        """Loss per token, perplexity, accuracy, and BLEU where it is asked for, from the parts of all processes."""
        tokens = sum(part.tokens for part in parts)
        loss = math.fsum(part.nll for part in parts) / tokens
        found = {
            "loss": loss,
            "ppl": math.exp(min(loss, 700.0)),
            "accuracy": math.fsum(part.correct for part in parts) / tokens,
        }
        if self.config.bleu or self.config.metric == "bleu":
            words = {i: text for part in parts for i, text in part.translations.items()}
            found["bleu"] = corpus_bleu(
                [words[i] for i in range(len(self.corpus))], self.references
            )
        return found

    def _sums(self, model: Seq2Seq, device: torch.device, world: World) -> tuple[float, float, int]:
        nll, correct, tokens = 0.0, 0.0, 0
        for indices in self.batches[world.rank :: world.size]:
            batch = collate(self.corpus, indices).to(device)
            one = batch_loss(model, model, batch, 0.0)
            nll, correct, tokens = (
                nll + float(one.nll),
                correct + float(one.correct),
                tokens + len(batch.target_index),
            )
        return nll, correct, tokens

    def _translations(self, model: Seq2Seq, world: World) -> dict[int, str]:
        translator = Translator([model], self.pipeline, self.search)
        mine = np.concatenate(self.batches)[
            world.rank :: world.size
        ].tolist()  # by length, so that all have as much to do
        found = translator.translate_ids([self.corpus.source[i] for i in mine])
        words = [
            self.pipeline.join(self.pipeline.target_vocab.decode(best[0].ids)) if best else ""
            for best in found
        ]
        return dict(zip(mine, words, strict=True))
