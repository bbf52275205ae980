"""Layer-wise coordination: its equations in NumPy float64, its masks and its parameter counts."""

from typing import Any

import numpy as np
import pytest
import torch

from fusetk import trace
from fusetk.models.coordinated import Coordinated, CoordinatedConfig
from fusetk.models.residual.plain import PlainResidual
from fusetk.nn.positions import sinusoids
from tests.helpers.equations import layer_norm, softmax

SRC, TGT = [4, 7, 5, 3], [2, 6, 9, 5, 8]
WIDTH, HEADS = 8, 2


def make(**options: Any) -> Any:
    """Build three layers in float64, with noise added to every initial weight."""
    sizes = {"width": WIDTH, "heads": HEADS, "ffn": 12, "stack": {"layers": 3}}
    config = CoordinatedConfig.model_validate({**sizes, **options})
    torch.manual_seed(1)
    model: Any = Coordinated(config, 13, 11).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def logits(model: Any, src: list[int] = SRC, tgt: list[int] = TGT) -> Any:
    ids = torch.tensor([src])
    with torch.no_grad():
        return model.output(
            model(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([tgt]))
        )[0].numpy()


class Equations:
    """The model of the paper for one sentence pair; ``p`` holds the parameters by name."""

    def __init__(
        self, model: Any, norm: str, mixed: bool, shared: bool, own: bool, target_maps: bool = False
    ):
        self.p = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        self.pre, self.mixed, self.shared, self.own = norm == "pre", mixed, shared, own
        self.target_maps = target_maps

    def linear(self, name: str, x: Any) -> Any:
        return x @ self.p[f"{name}.weight"].T + self.p[f"{name}.bias"]

    def norm(self, name: str, x: Any) -> Any:
        return layer_norm(x) * self.p[f"{name}.norm.weight"] + self.p[f"{name}.norm.bias"]

    def sublayer(self, name: str, x: Any, function: Any) -> Any:
        return x + function(self.norm(name, x)) if self.pre else self.norm(name, x + function(x))

    def before(self, name: str, x: Any) -> Any:
        return self.norm(name, x) if self.pre else x

    @staticmethod
    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        """softmax(q k^T / sqrt(d) + M) v, head by head."""
        heads = []
        for rows in np.split(np.arange(WIDTH), HEADS):
            scores = q[:, rows] @ k[:, rows].T / np.sqrt(len(rows)) + np.where(mask, 0.0, -np.inf)
            heads.append(softmax(scores) @ v[:, rows])
        return np.concatenate(heads, 1)

    def qkv(self, name: str, x: Any) -> Any:
        return np.split(self.linear(f"{name}.attention.project", x), 3, 1)

    def ffn(self, name: str, x: Any) -> Any:
        return self.linear(f"{name}.ffn.out", np.maximum(self.linear(f"{name}.ffn.hidden", x), 0))

    def keys_values(self, name: str, x: Any) -> Any:
        """The keys and values of a source layer that the target attends to."""
        return self.projected(name, self.before(f"{name}.attention_residual", x))

    def projected(self, name: str, x: Any) -> Any:
        layer = f"stack.layers.{name.rpartition('.')[2]}"
        if self.own:
            return np.split(self.linear(f"{layer}.cross.project.0", x), 2, 1)
        return self.qkv(layer if self.target_maps else name, x)[1:]

    def source_layer(self, name: str, x: Any) -> Any:
        def attend(y: Any) -> Any:
            q, k, v = self.qkv(name, y)
            return self.linear(
                f"{name}.attention.out", self.attention(q, k, v, np.ones((len(y), len(y)), bool))
            )

        x = self.sublayer(f"{name}.attention_residual", x, attend)
        return self.sublayer(f"{name}.ffn_residual", x, lambda y: self.ffn(name, y))

    def target_layer(self, name: str, x: Any, keys: Any, values: Any) -> Any:
        causal, n = np.tri(len(x), dtype=bool), len(keys)

        def mixed(y: Any) -> Any:
            """Equation 3: M(i, j) = 0 where j < n or j <= i + n."""
            q, k, v = self.qkv(name, y)
            mask = np.array(
                [[j < n or j <= i + n for j in range(n + len(y))] for i in range(len(y))]
            )
            return self.linear(
                f"{name}.attention.out",
                self.attention(q, np.concatenate([keys, k]), np.concatenate([values, v]), mask),
            )

        def alone(y: Any) -> Any:
            q, k, v = self.qkv(name, y)
            return self.linear(f"{name}.attention.out", self.attention(q, k, v, causal))

        def cross(y: Any) -> Any:
            q = self.linear(f"{name}.cross.query", y) if self.own else self.qkv(name, y)[0]
            attended = self.attention(q, keys, values, np.ones((len(y), n), bool))
            out = "cross.out" if self.own else "attention.out"
            return self.linear(f"{name}.{out}", attended)

        x = self.sublayer(f"{name}.attention_residual", x, mixed if self.mixed else alone)
        if not self.mixed:
            x = self.sublayer(f"{name}.cross_residual", x, cross)
        return self.sublayer(f"{name}.ffn_residual", x, lambda y: self.ffn(name, y))

    def embed(self, side: str, ids: list[int]) -> Any:
        words = (
            self.p[f"{side}.tokens.weight"][ids] * np.sqrt(WIDTH)
            + sinusoids(len(ids), WIDTH).double().numpy()
        )
        return words + self.p[f"{side}.language.weight"]

    def logits(self) -> Any:
        x, z = self.embed("source", SRC), self.embed("target", TGT)
        for i in range(3):
            name = f"stack.layers.{i}"
            source = name if self.shared else f"source_stack.layers.{i}"
            # A separate highest source layer has only keys and values.
            if i == 2 and not self.shared:
                above = self.norm(source, x) if self.pre else x
                if self.own or self.target_maps:
                    keys, values = self.projected(source, above)
                else:
                    keys, values = np.split(self.linear(f"{source}.project", above), 2, 1)
            else:
                keys, values = self.keys_values(source, x)
            z = self.target_layer(name, z, keys, values)
            x = self.source_layer(source, x) if i < 2 else x
        top = layer_norm(z) * self.p["norm.weight"] + self.p["norm.bias"] if self.pre else z
        return top @ self.p["output.weight"].T + self.p["output.bias"]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("attention", ["mixed", "two with the same maps", "two"])
def test_a_model_computes_the_equations_of_the_paper(
    norm: str, shared: bool, attention: str
) -> None:
    mixed, own = attention == "mixed", attention == "two"
    model = make(
        norm=norm,
        share_weights=shared,
        mixed_attention=mixed,
        cross_weights="own" if own else "shared",
    )
    expected = Equations(model, norm, mixed, shared, own).logits()
    np.testing.assert_allclose(logits(model), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("mixed", [True, False])
def test_the_target_may_project_the_source(norm: str, mixed: bool) -> None:
    options = {"share_weights": False, "mixed_attention": mixed, "source_maps": "target"}
    model = make(norm=norm, **options)
    expected = Equations(model, norm, mixed, shared=False, own=False, target_maps=True).logits()
    np.testing.assert_allclose(logits(model), expected, rtol=1e-9, atol=1e-10)
    assert not any("source_stack.layers.2.project" in name for name in model.state_dict())


def test_target_maps_need_separate_layers_and_no_other_maps() -> None:
    with pytest.raises(ValueError, match="no effect with share_weights: true"):
        make(source_maps="target")
    own = {"share_weights": False, "mixed_attention": False, "cross_weights": "own"}
    with pytest.raises(ValueError, match="no effect with cross_weights: own"):
        make(source_maps="target", **own)


def test_mixed_attention_is_one_softmax_over_source_and_target() -> None:
    model, ids = make(), torch.tensor([SRC])
    with trace.listen("*") as recorded:
        model(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([TGT]))
    assert sorted(recorded) == [f"decoder.layer{i}.mixed" for i in (1, 2, 3)] + [
        f"encoder.layer{i}.self" for i in (1, 2)
    ]
    [weights] = recorded["decoder.layer2.mixed"]
    assert weights.shape == (1, HEADS, len(TGT), len(SRC) + len(TGT))
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights[..., len(SRC) :].triu(1).any() and weights[..., : len(SRC)].all()


@pytest.mark.parametrize("mixed", [True, False])
def test_a_target_token_reads_no_later_one_and_decoding_leaves_the_memory_unchanged(
    mixed: bool,
) -> None:
    model = make(mixed_attention=mixed)
    before, after = logits(model), logits(model, tgt=[*TGT[:3], 7, *TGT[4:]])
    np.testing.assert_array_equal(after[:3], before[:3])
    assert (after[3:] != before[3:]).any(1).all()
    ids = torch.tensor([SRC])
    memory = model.encode(ids, torch.ones_like(ids, dtype=torch.bool))
    copies = [tensor.clone() for tensor in memory.layer_sources]
    model.decode(torch.tensor([TGT]), model.start(memory))
    assert all(
        torch.equal(kept, copy) for kept, copy in zip(memory.layer_sources, copies, strict=True)
    )


def test_without_positions_the_order_of_the_source_changes_nothing() -> None:
    """Without positions and mask the source is a set: its order changes nothing."""
    shuffled = [SRC[i] for i in (2, 0, 3, 1)]
    assert np.abs(logits(make(), shuffled) - logits(make())).max() > 1e-3
    np.testing.assert_allclose(
        logits(make(positions="none"), shuffled), logits(make(positions="none")), rtol=1e-9
    )


def test_without_language_embedding_both_sides_embed_a_token_alike() -> None:
    for language in (True, False):
        model = make(language_embedding=language)
        model.target.tokens = model.source.tokens
        ids = torch.tensor([[4, 5]])
        assert torch.equal(model.source(ids), model.target(ids)) is not language


def expected_parameters(layers: int, vocabulary: int, width: int, ffn: int) -> int:
    """The parameters of one embedding matrix, two language vectors and the layers.

    A layer has four projections of attention, two of the feed-forward network and two norms.
    """
    layer = 4 * (width * width + width) + 2 * width * ffn + ffn + width + 2 * 2 * width
    return vocabulary * width + 2 * width + layers * layer


@pytest.mark.parametrize("layers", [10, 14, 18, 22])
def test_a_model_has_the_expected_parameters(layers: int) -> None:
    sizes = {
        "width": 256,
        "heads": 4,
        "ffn": 1024,
        "stack": {"layers": layers},
        "tie": "all",
        "output_bias": False,
    }
    with torch.device("meta"):
        model = Coordinated(CoordinatedConfig.model_validate(sizes), 31_000, 31_000)
    assert sum(p.numel() for p in model.parameters()) == expected_parameters(
        layers, 31_000, 256, 1024
    )


def test_deep_norm_scales_the_values_of_the_highest_source_layer() -> None:
    """With separate layers it has only a projection to keys and values."""
    weights = []
    for kind in ("plain", "deep-norm"):
        sizes = {"width": WIDTH, "heads": HEADS, "norm": "post", "share_weights": False}
        stack = {"layers": 3, "residual": kind}
        torch.manual_seed(1)
        model = Coordinated(CoordinatedConfig.model_validate({**sizes, "stack": stack}), 13, 11)
        assert model.source_stack is not None
        weights.append(model.source_stack.layers[-1].get_parameter("project.weight").chunk(2))
    (keys, values), (deep_keys, deep_values) = weights
    torch.testing.assert_close(deep_keys, keys)
    torch.testing.assert_close(deep_values, values * (8 * 3) ** -0.25)


@pytest.mark.parametrize("cross_weights", ["shared", "own"])
def test_every_residual_connection_is_initialised(
    cross_weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialised = []
    monkeypatch.setattr(PlainResidual, "initialise", lambda self, _: initialised.append(self))
    model = make(mixed_attention=False, cross_weights=cross_weights)
    expected = [module for module in model.modules() if isinstance(module, PlainResidual)]
    assert len(expected) == 3 * 3 and set(initialised) == set(expected)


def test_own_cross_weights_need_two_sublayers() -> None:
    with pytest.raises(ValueError, match="no effect with mixed_attention: true"):
        make(cross_weights="own")
