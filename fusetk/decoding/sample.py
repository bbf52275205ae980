"""Translations that are drawn and not searched for.

Definition
----------
N times for each sentence: at each step one token is drawn from the models' distribution over those that are allowed
(``fusetk.decoding.rules``), each probability p made p^(1 / temperature), of the ``top_k`` likeliest tokens only, and of these
the likeliest only that together first reach ``top_p``; until that is the end mark. So scores, the models' own log-probabilities,
count what was forbidden, too, as everywhere.

Draw number i of a line's n-th sample is the token at which the sum of probabilities, likeliest first where ``top_k`` or ``top_p``
say so and by id otherwise, passes a number u in [0, 1). All u of a line come from the seed and the line's number alone (Philox 4x64,
Salmon et al. 2011), so a sample depends neither on the batch nor on other lines; but numbers as close as float32 rounding may fall to
the other side of a boundary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fusetk.data.vocab import BOS, EOS
from fusetk.decoding.beam import Hypothesis
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.rules import DEAD, Demand, Rules
from fusetk.decoding.scorer import Scorer
from fusetk.decoding.scores import value
from fusetk.errors import ConfigError, Diverged
from fusetk.models.seq2seq import Seq2Seq


@torch.inference_mode()
def sample(
    models: Sequence[Seq2Seq], src: Tensor, src_mask: Tensor, config: SearchConfig, demands: Sequence[Demand] | None = None
) -> list[list[Hypothesis]]:  # fmt: skip
    """``n_best`` samples of each sentence, the likeliest first. Arguments as of ``fusetk.decoding.beam.search``.

    Raises ConfigError where phrases must be there, Diverged if a model returns NaN.
    """
    demands = demands or [Demand()] * len(src)
    if any(demand.constraints for demand in demands):
        raise ConfigError("phrases that a translation must contain can be searched for but not sampled: leave out sample, or the phrases")
    count, rules = config.n_best, Rules(models, src_mask, config, demands)
    scorer = Scorer(models, config.ensemble)
    states = scorer.start(src, src_mask)
    drawn = torch.from_numpy(_uniform(config.seed, [demand.line for demand in demands], count, rules.longest)).to(src.device)
    found: list[list[Hypothesis]] = [[] for _ in range(len(src))]
    unit = torch.arange(len(src), device=src.device)
    prefix, score = src.new_full((len(src), 1, 1), BOS), torch.zeros(len(src), 1, device=src.device)
    for length in range(1, rules.longest + 1):
        step = scorer.step(prefix[:, :, -1].flatten(), states)
        if length == 1 and count > 1:  # one empty sample of each sentence becomes all of its samples
            prefix, score = prefix.expand(-1, count, -1), score.expand(-1, count)
            rows = torch.arange(len(src), device=src.device).repeat_interleave(count)
            step = step._replace(states=scorer.select(step.states, rows, None), values=step.values[rows], normaliser=step.normaliser[rows])
        scores = step.values - step.normaliser
        rules.apply(step.values, unit, prefix, length, None)
        token = _draw(step.values, drawn[unit, :, length - 1].flatten(), config)
        score = score + scores.gather(1, token).view_as(score)
        prefix = torch.cat((prefix, token.view(len(prefix), -1, 1)), 2)
        ended, states = prefix[:, :, -1] == EOS, step.states
        for i, n in (ended & (score > DEAD)).nonzero().tolist():
            one, ids = score[i, n], prefix[i, n, 1:-1].tolist()
            found[int(unit[i])].append(Hypothesis(ids, float(one), float(value(one, length, config))))
        score = score.masked_fill(ended, DEAD)
        stay = (score != DEAD).any(1).nonzero().flatten()  # NaN stays
        if not len(stay):
            break
        if len(stay) < len(unit):
            rows = (stay[:, None] * count + torch.arange(count, device=stay.device)).flatten()
            unit, prefix, score, states = unit[stay], prefix[stay], score[stay], scorer.select(states, rows, stay)
    if score.isnan().any():
        raise Diverged()
    return [sorted(several, key=lambda one: -one.normalized) for several in found]


def _uniform(seed: int, lines: Sequence[int], count: int, length: int) -> np.ndarray:
    """Numbers in [0, 1), (B, count, length)."""
    bits = ((np.random.Philox(key=[seed, line], counter=[0, 0, 0, n]) for n in range(count)) for line in lines)
    return np.array([[np.random.Generator(one).random(length) for one in several] for several in bits])


def _draw(values: Tensor, uniform: Tensor, config: SearchConfig) -> Tensor:
    """Tokens (R, 1) drawn by numbers (R,) from unnormalised log-probabilities (R, V)."""
    values, order = values.double() / config.temperature, None
    if config.top_k or config.top_p < 1:
        values, order = values.sort(dim=1, descending=True, stable=True)
        values = values[:, : config.top_k or None]
    probability = values.softmax(-1)
    if config.top_p < 1:
        before = F.pad(probability.cumsum(1)[:, :-1], (1, 0))
        probability = probability.masked_fill(before >= config.top_p, 0)
    total = probability.cumsum(1)
    place = torch.searchsorted(total, uniform[:, None] * total[:, -1:], right=True).clamp(max=total.shape[1] - 1)
    return place if order is None else order.gather(1, place)
