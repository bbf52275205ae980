"""Sampling: draw translations from the model's distribution instead of searching for the best.

Definition
----------
Each sentence gets N samples. For a sample, one token is drawn at each step from the models'
distribution over the allowed tokens (``fusetk.decoding.token_mask``), until EOS is drawn. Before
the draw, each probability p is changed to p^(1 / temperature). Only the ``top_k`` most probable
tokens can be drawn. Of these, only the smallest set of most probable tokens whose probability
reaches ``top_p`` can be drawn. Scores are the models' own log-probabilities. Forbidden tokens keep
their share of the probability, as in the search.

The drawn token is the one with the largest log p / temperature - log(-log u), with a number u in
(0, 1) for each token (Gumbel 1954; this is equivalent to drawing by p). The numbers u are a
function of the seed, the line number, and the numbers of the sample, the step and the token
(Philox, Salmon et al. 2011, for the steps; SplitMix64, Steele et al. 2014, for the tokens). So a
sample depends neither on the batch nor on other lines. There are two exceptions, because of float32
rounding: two tokens with almost equal values, and a token at the limit of ``top_k`` or ``top_p``.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.data.vocab import BOS, EOS
from fusetk.decoding.beam import COMPACTION_THRESHOLD, Hypothesis, remaining
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.scorer import Scorer
from fusetk.decoding.scores import normalized_score
from fusetk.decoding.threads import raise_if_cancelled
from fusetk.decoding.token_mask import NEG_INF, EncodedRequest, TokenMask, unrestricted
from fusetk.errors import ConfigError, Diverged
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn import splitmix


@torch.inference_mode()
def sample(
    models: Sequence[Seq2Seq],
    src: Tensor,
    src_mask: Tensor,
    config: SearchConfig,
    requests: Sequence[EncodedRequest] | None = None,
) -> list[list[Hypothesis]]:
    """Return ``n_best`` samples of each sentence, the highest value first.

    The arguments are those of ``fusetk.decoding.beam.search``. Raises ConfigError for requests with
    constraints, and Diverged if a probability is NaN.
    """
    requests = requests or unrestricted(len(src))
    if any(request.constraints for request in requests):
        raise ConfigError(
            "sampling cannot enforce phrases that a translation must contain: remove sample or "
            "remove the phrases"
        )
    count = config.n_best
    device = src.device
    mask = TokenMask(models, src_mask, config, requests)
    lines = [request.line for request in requests]
    keys = torch.from_numpy(_keys(config.seed, lines, count, mask.longest)).to(device)
    scorer = Scorer(models, config.ensemble_mean)
    rows = torch.arange(len(src), device=device).repeat_interleave(count)
    states = scorer.select(scorer.start(src, src_mask), rows, None)
    samples = _Samples(src, count, mask.longest)
    search_index = torch.arange(len(src), device=device)
    prefix = src.new_full((len(src), count, 1), BOS)
    for length in range(1, mask.longest + 1):
        raise_if_cancelled()
        step = scorer.step(prefix[:, :, -1].flatten(), states)
        states = step.states
        mask.apply(step.logits, search_index, prefix, length, None)
        token = _draw(step.logits, keys[search_index, :, length - 1].flatten(), config)
        log_prob = step.logits.gather(1, token) - step.log_z
        log_prob = log_prob.view(len(search_index), count)
        token = token.view(len(search_index), count)
        samples.add(search_index, token, log_prob, length)
        prefix = torch.cat((prefix, token[:, :, None]), 2)
        # The next line is the only synchronisation with the device in a step.
        flags = (samples.length[search_index] > 0).all(1).tolist()
        if all(flags):
            break
        if sum(flags) >= COMPACTION_THRESHOLD * len(flags):
            sentences, rows = remaining(flags, count, device)
            search_index = search_index[sentences]
            prefix = prefix[sentences]
            states = scorer.select(states, rows, sentences)
    if samples.score.isnan().any():
        raise Diverged()
    return samples.hypotheses(config)


class _Samples:
    """The N samples of each of B sentences."""

    def __init__(self, src: Tensor, count: int, longest: int):
        """``longest`` is the maximum length of all samples, including EOS."""
        size = (len(src), count)
        self.ids = src.new_zeros(*size, longest)
        self.score = torch.zeros(size, dtype=torch.float32, device=src.device)
        self.length = src.new_zeros(size)  # includes EOS; 0 until EOS is drawn

    def add(self, search_index: Tensor, token: Tensor, log_prob: Tensor, length: int) -> None:
        """Add the tokens (A, N) with the number ``length`` and their log-probabilities (A, N).

        ``search_index`` (A,) lists their sentences. Tokens after EOS do not count.
        """
        is_live = self.length[search_index] == 0
        self.score[search_index] += log_prob.masked_fill(~is_live, 0)
        self.ids[search_index, :, length - 1] = token
        self.length[search_index] += ((token == EOS) & is_live) * length

    def hypotheses(self, config: SearchConfig) -> list[list[Hypothesis]]:
        """Return the samples of each sentence, the highest value first.

        A sample is missing if all tokens were forbidden at one of its steps.
        """
        hypotheses = []
        for samples in zip(
            self.ids.tolist(), self.length.tolist(), self.score.tolist(), strict=True
        ):
            complete = [
                Hypothesis(tokens[: length - 1], score, normalized_score(score, length, config))
                for tokens, length, score in zip(*samples, strict=True)
                if score > NEG_INF
            ]
            hypotheses.append(sorted(complete, key=lambda hypothesis: -hypothesis.normalized))
        return hypotheses


def _keys(seed: int, lines: Sequence[int], count: int, length: int) -> np.ndarray:
    """Return a number of 64 bits for each step of each sample, (B, count, length)."""
    keys = np.empty((len(lines), count, length), np.int64)
    for i, line in enumerate(lines):
        for n in range(count):
            generator = np.random.Philox(
                key=np.array([seed, line], np.uint64), counter=[0, 0, 0, n]
            )
            keys[i, n] = generator.random_raw(length).view(np.int64)
    return keys


def _draw(logits: Tensor, keys: Tensor, config: SearchConfig) -> Tensor:
    """Draw tokens (R, 1) by keys (R,) from unnormalised log-probabilities (R, V)."""
    logits = logits / config.temperature
    token = torch.arange(logits.shape[1], device=logits.device)[None]
    if config.top_k or config.top_p < 1:
        logits, token = logits.sort(dim=1, descending=True, stable=True)
        logits = logits[:, : config.top_k or None]
        token = token[:, : config.top_k or None]
    if config.top_p < 1:
        before = F.pad(logits.double().softmax(-1).cumsum(1)[:, :-1], (1, 0))
        logits = logits.masked_fill(before >= config.top_p, NEG_INF)
    gumbel = _uniform(keys[:, None], token).log_().neg_().log_()
    place = (logits - gumbel).argmax(1, keepdim=True)
    return token.expand(len(logits), -1).gather(1, place)


def _uniform(keys: Tensor, token: Tensor) -> Tensor:
    """Return numbers in (0, 1) for keys (R, 1) and tokens (R or 1, C).

    They are 23 bits of the SplitMix64 word number ``token`` + 1 of the key. With 24 bits, float32
    would round the largest number to 1.
    """
    words = splitmix.words(keys + (token + 1) * splitmix.INCREMENT)
    return (splitmix.shifted_right(words, 41).float() + 0.5) * 2.0**-23
