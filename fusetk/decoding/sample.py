"""Translations that are drawn and not searched for.

Definition
----------
N times for each sentence: at each step one token is drawn from the models' distribution over those that are allowed
(``fusetk.decoding.token_mask``), each probability p made p^(1 / temperature), of the ``top_k`` likeliest tokens only, and of these
the likeliest only that together first reach ``top_p``; until that is the end mark. So scores, the models' own log-probabilities,
count what was forbidden, too, as everywhere.

What is drawn is the token with the largest log p / temperature - log(-log u), with a number u in (0, 1) for each token (Gumbel 1954;
the same as drawing by p). All u come from the seed, the line's number, the sample's, the step's and the token's alone (Philox, Salmon et
al. 2011, for each step; SplitMix64, Steele et al. 2014, for its tokens). So a sample depends neither on the batch nor on other lines,
but where two tokens are as close as float32 rounding, or one stands at the edge of ``top_k`` or ``top_p``.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.data.vocab import BOS, EOS
from fusetk.decoding.beam import LEAVE, Hypothesis
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.scorer import Scorer
from fusetk.decoding.scores import value
from fusetk.decoding.token_mask import DEAD, Demand, Rules
from fusetk.errors import ConfigError, Diverged
from fusetk.models.seq2seq import Seq2Seq


@torch.inference_mode()
def sample(
    models: Sequence[Seq2Seq],
    src: Tensor,
    src_mask: Tensor,
    config: SearchConfig,
    demands: Sequence[Demand] | None = None,
) -> list[list[Hypothesis]]:
    """``n_best`` samples of each sentence, the likeliest first. Arguments as of ``fusetk.decoding.beam.search``.

    Raises ConfigError where phrases must be there, Diverged if a model returns NaN.
    """
    demands = demands or [Demand()] * len(src)
    if any(demand.constraints for demand in demands):
        raise ConfigError(
            "phrases that a translation must contain can be searched for but not sampled: leave out sample, or the phrases"
        )
    count, device, rules = config.n_best, src.device, Rules(models, src_mask, config, demands)
    keys = torch.from_numpy(
        _keys(config.seed, [demand.line for demand in demands], count, rules.longest)
    ).to(device)
    scorer = Scorer(models, config.ensemble)
    states = scorer.select(
        scorer.start(src, src_mask),
        torch.arange(len(src), device=device).repeat_interleave(count),
        None,
    )
    ids = src.new_zeros(len(src), count, rules.longest)
    scores, lengths = torch.zeros(len(src), count, device=device), src.new_zeros(len(src), count)
    unit, prefix = torch.arange(len(src), device=device), src.new_full((len(src), count, 1), BOS)
    for length in range(1, rules.longest + 1):
        step = scorer.step(prefix[:, :, -1].flatten(), states)
        plain = step.values.clone()
        rules.apply(step.values, unit, prefix, length, None)
        token = _draw(step.values, keys[unit, :, length - 1].flatten(), config)
        gained = (
            (plain.gather(1, token) - step.normaliser)
            .masked_fill(step.values.gather(1, token) == DEAD, DEAD)
            .view(len(unit), count)
        )
        token, going = token.view(len(unit), count), lengths[unit] == 0
        scores[unit] += gained.masked_fill(~going, 0)
        ids[unit, :, length - 1] = token
        lengths[unit] += ((token == EOS) & going) * length
        prefix, states = torch.cat((prefix, token[:, :, None]), 2), step.states
        over = (lengths[unit] > 0).all(1).tolist()  # the one wait for the device in a step
        if all(over):
            break
        if sum(over) >= LEAVE * len(over):
            stay = torch.tensor([i for i, done in enumerate(over) if not done], device=device)
            rows = (stay[:, None] * count + torch.arange(count, device=device)).flatten()
            unit, prefix, states = unit[stay], prefix[stay], scorer.select(states, rows, stay)
    if scores.isnan().any():
        raise Diverged()
    drawn = zip(ids.tolist(), lengths.tolist(), scores.tolist(), strict=True)
    found = [
        [
            Hypothesis(i[: n - 1], s, value(s, n, config))
            for i, n, s in zip(*one, strict=True)
            if s > DEAD
        ]
        for one in drawn
    ]
    return [sorted(several, key=lambda one: -one.normalized) for several in found]


def _keys(seed: int, lines: Sequence[int], count: int, length: int) -> np.ndarray:
    """A number of 64 bits for each step of each sample, (B, count, length)."""
    found = np.empty((len(lines), count, length), np.int64)
    for i, line in enumerate(lines):
        for n in range(count):
            found[i, n] = (
                np.random.Philox(key=np.array([seed, line], np.uint64), counter=[0, 0, 0, n])
                .random_raw(length)
                .view(np.int64)
            )
    return found


def _draw(values: Tensor, keys: Tensor, config: SearchConfig) -> Tensor:
    """Tokens (R, 1) drawn by keys (R,) from unnormalised log-probabilities (R, V)."""
    values, token = (
        values / config.temperature,
        torch.arange(values.shape[1], device=values.device)[None],
    )
    if config.top_k or config.top_p < 1:
        values, token = values.sort(dim=1, descending=True, stable=True)
        values, token = values[:, : config.top_k or None], token[:, : config.top_k or None]
    if config.top_p < 1:
        before = F.pad(values.double().softmax(-1).cumsum(1)[:, :-1], (1, 0))
        values = values.masked_fill(before >= config.top_p, DEAD)
    place = (values - _uniform(keys[:, None], token).log_().neg_().log_()).argmax(1, keepdim=True)
    return token.expand(len(values), -1).gather(1, place)


def _uniform(keys: Tensor, token: Tensor) -> Tensor:
    """Numbers in (0, 1) for keys (R, 1) and tokens (R or 1, C): SplitMix64's number ``token`` behind a key, 24 bits of it."""
    bits = keys + (token + 1) * _signed(0x9E3779B97F4A7C15)
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return (_shifted(bits ^ _shifted(bits, 31), 40).float() + 0.5) * 2.0**-24


def _shifted(bits: Tensor, places: int) -> Tensor:
    """To the right, zeros coming in at the left, where the sign is."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
