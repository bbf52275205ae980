"""Self-attention of classes outside fusetk (the config key `self_attention`)."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk.errors import ConfigError
from fusetk.models.coordinated import CoordinatedConfig
from fusetk.models.residual.deep_norm import DeepNormResidual
from fusetk.models.residual.plain import PlainResidual
from fusetk.models.self_attention import (
    AttentionOptions,
    CustomSelfAttention,
    SelfAttentionConfig,
)
from fusetk.models.seq2seq import Seq2Seq, State
from fusetk.models.transformer import Transformer, TransformerConfig
from fusetk.nn.cache import Cache
from fusetk.nn.nested import select
from fusetk.training.verify import verify
from fusetk.training.verify_pairs import random_pairs

SIZES = {"width": 16, "heads": 2, "ffn": 24}


class Usual(CustomSelfAttention):
    """The usual attention."""


class DistanceConfig(SelfAttentionConfig):
    slope: float = 1.0


class Distances(CustomSelfAttention):
    """Subtracts the distance of the positions from the scores."""

    Config = DistanceConfig

    def scores(
        self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        products = super().scores(q, k, query_positions, key_positions)
        distances = (query_positions[:, None] - key_positions).abs()
        return products - self.config.slope * distances


class Hidden(CustomSelfAttention):
    """Reads hidden keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *positions: Tensor) -> Any:
        return super().attend(q, k, v, torch.ones_like(visible), *positions)


class OneScore(CustomSelfAttention):
    def scores(self, q: Tensor, k: Tensor, *positions: Tensor) -> Tensor:
        return super().scores(q, k, *positions)[..., :1]


class WithHeads(CustomSelfAttention):
    def attend(self, q: Tensor, *arguments: Tensor) -> Tensor:
        return super().attend(q, *arguments).transpose(1, 2)


class Ones(CustomSelfAttention):
    """All weights of the output are 1."""

    def initialise(self) -> None:
        nn.init.ones_(self.out.weight)


class CustomResidual(PlainResidual):
    attention_class = Usual


def kind(cls: type) -> str:
    return f"{__name__}:{cls.__name__}"


def config(cls: type | None, **options: Any) -> TransformerConfig:
    """Return the config of a model with a self-attention, and other options of sides."""
    keys = ("connect", "residual")
    side: dict[str, Any] = {key: options.pop(key) for key in keys if key in options}
    side["layers"] = 2
    if cls is not None:
        side["self_attention"] = kind(cls)
    return TransformerConfig.model_validate(SIZES | options | {"encoder": side, "decoder": side})


def built(cls: type | None, **options: Any) -> Transformer:
    torch.manual_seed(1)
    return Transformer(config(cls, **options), 20, 20)


def results(model: Seq2Seq) -> list[Tensor]:
    """Return the logits of padded and of packed sentences, and those of the first step."""
    pairs = random_pairs(model, 20, 20)
    state = model.start(model.encode(pairs.src, pairs.src_mask))
    first, _ = model.decode(pairs.tgt_in[:, :1], state)
    return [pairs.padded_logits(model), pairs.training_features(model), first]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_heads": 1},
        {"positions": "rotary"},
        {"norm": "pre", "connect": "mudd"},
        {"norm": "pre", "residual": "hyper"},
    ],
    ids=str,
)
@torch.no_grad()
def test_the_base_class_is_the_usual_attention(options: dict[str, Any]) -> None:
    usual, custom = built(None, **options).eval(), built(Usual, **options).eval()
    custom.load_state_dict(usual.state_dict())
    torch.testing.assert_close(results(custom), results(usual))
    assert not verify(custom, 20, 20, [kind(Usual)])


def test_scores_may_depend_on_the_positions() -> None:
    """The equation in NumPy; ``verify`` compares packed sentences, steps and hypotheses."""
    options = AttentionOptions(8, 2, 0.0, "self", bias=True, groups=None, rotary=False)
    module = Distances(DistanceConfig(slope=0.7), options).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    cache, steps = Cache(x[:, :0], 0), []
    for t in range(5):
        y, cache = module.step(x[:, t : t + 1], cache, None, start=t)
        steps.append(y)
    q, k, v = (part.detach().numpy() for part in module.project(x)[0].split(8, -1))
    expected = np.zeros((5, 8))
    for t in range(5):
        for head in (slice(4), slice(4, 8)):
            scores = k[: t + 1, head] @ q[t, head] / 2 - 0.7 * (t - np.arange(t + 1))
            weights = np.exp(scores) / np.exp(scores).sum()
            expected[t, head] = weights @ v[: t + 1, head]
    expected = expected @ module.out.weight.detach().numpy().T + module.out.bias.detach().numpy()
    result = torch.cat(steps, 1)[0].detach().numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-8)
    assert not verify(built(Distances), 20, 20, [kind(Distances)])


@torch.no_grad()
def test_selected_sentences_keep_the_positions_of_their_tokens() -> None:
    model = built(Distances).eval()
    pairs = random_pairs(model, 20, 20)
    target = torch.randint(4, 20, (len(pairs.src), 3))
    _, state = model.decode(target[:, :2], model.start(model.encode(pairs.src, pairs.src_mask)))
    features, _ = model.decode(target[:, 2:], state)
    rows = torch.tensor([2, 0])
    tensors = (select(part, rows) for part in (state.per_sentence, state.per_hypothesis))
    selected, _ = model.decode(target[rows, 2:], State(*tensors, state.step))
    torch.testing.assert_close(selected, features[rows])


@pytest.mark.parametrize(
    ("cls", "error"),
    [
        (Hidden, "must read only the keys at which `visible` is True"),
        (OneScore, r"OneScore \(encoder.layer1.self\) returned the shape \(3, 2, 8, 1\)"),
        (WithHeads, r"WithHeads \(encoder.layer1.self\) returned the shape \(3, 8, 2, 8\)"),
    ],
)
def test_wrong_self_attention_is_refused(cls: type, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        verify(built(cls), 20, 20, [kind(cls)])


def test_a_self_attention_sets_weights_before_the_residual_connection_scales_them() -> None:
    layer = built(Ones, residual="deep-norm").encoder.layers[0]
    residual: Any = layer.attention_residual
    assert isinstance(residual, DeepNormResidual) and residual.beta != 1
    weight: Any = layer.attention.out.weight
    assert torch.equal(weight, torch.full((16, 16), residual.beta))


def test_options_that_do_not_fit_a_self_attention_are_refused() -> None:
    with pytest.raises(ValueError, match="value-residual needs its own self-attention, which"):
        config(Usual, norm="pre", residual="value-residual")
    with pytest.raises(ValueError, match="name the class in the key self_attention"):
        config(None, residual=kind(CustomResidual))
    stack = {"layers": 2, "self_attention": kind(Usual)}
    with pytest.raises(ValueError, match="is an option of kind: transformer"):
        CoordinatedConfig.model_validate({**SIZES, "stack": stack})
    with pytest.raises(ValueError, match="OwnAttention' is not a subclass of"):
        TransformerConfig.model_validate(
            {"encoder": {"layers": 1, "self_attention": "tests.models.test_residual:OwnAttention"}}
        )
