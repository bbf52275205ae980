"""The most probable next tokens of a translation agree with forced decoding and with search."""

import pytest
import torch

from fusetk.data.vocab import BOS, EOS, PAD
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.next_tokens import next_tokens
from fusetk.decoding.scorer import Scorer
from fusetk.decoding.target_scores import score_targets
from fusetk.decoding.token_mask import SimpleRules
from tests.plotting.models import SIZE, stack, transformer

PAIRS = [([5, 6, 7, EOS], [4, 8]), ([9, EOS], []), ([4, 4, 4, 4, EOS], [10, 11, 5, 6, 7])]


def test_scores_and_best_tokens_are_those_of_the_model() -> None:
    model = transformer(stack("attention", 2), stack("last", 2)).eval()
    steps = next_tokens(model, PAIRS, 4)
    for scores, pair_steps in zip(score_targets([model], PAIRS), steps, strict=True):
        assert [step.score for step in pair_steps] == pytest.approx(scores.scores, abs=1e-5)
    for (source, target), pair_steps in zip(PAIRS, steps, strict=True):
        assert [step.token for step in pair_steps] == [*target, EOS]
        features = model(
            torch.tensor([source]),
            torch.ones(1, len(source), dtype=torch.bool),
            torch.tensor([[BOS, *target]]),
        )
        expected = model.output(features)[0].log_softmax(-1)
        for step, row in zip(pair_steps, expected, strict=True):
            order = [i for i in row.argsort(descending=True).tolist() if i not in (PAD, BOS)]
            assert [i for i, _ in step.best] == order[:4]
            scores = [score for _, score in step.best]
            assert scores == pytest.approx(row[order[:4]].tolist(), abs=1e-5)
    [[first, *_], *_] = next_tokens(model, PAIRS, 1000)
    assert len(first.best) == SIZE - 2


def test_a_search_gets_at_most_all_tokens() -> None:
    model = transformer(stack("last", 1), stack("last", 1)).eval()
    scorer = Scorer([model])
    if not scorer.supports_best:
        pytest.skip("there is no C++ compiler")
    with torch.inference_mode():
        states = scorer.start(torch.tensor([[7, EOS]]), torch.ones(1, 2, dtype=torch.bool))
        rules = SimpleRules(torch.tensor([PAD]), None)
        best = scorer.best(torch.tensor([BOS]), states, rules, 1000)
    assert sorted(best.token[best.logits > -torch.inf].tolist()) == list(range(1, SIZE))


def test_greedy_search_takes_the_best_token_of_each_step() -> None:
    model = transformer(stack("last", 1), stack("last", 1)).eval()
    source = [7, 5, 9, EOS]
    config = SearchConfig(beam=1, min_length=0)
    mask = torch.ones(1, len(source), dtype=torch.bool)
    [[hypothesis]] = search([model], torch.tensor([source]), mask, config)
    [steps] = next_tokens(model, [(source, hypothesis.ids)], 1)
    limit = 2 * len(source) + 10 - 2  # at the maximum length, only EOS is allowed
    for step in steps[:limit]:
        assert step.token == step.best[0][0]
