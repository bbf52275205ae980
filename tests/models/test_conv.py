"""ConvS2S and DenseNMT: their equations in NumPy float64, gradients and initial weights."""

from typing import Any

import numpy as np
import pytest
import torch

from fusetk.models.connect import DenseConnection, DenseConnectionConfig
from fusetk.models.conv import Conv, ConvConfig
from fusetk.training.optim import OPTIMIZERS

HALF = np.sqrt(0.5)
SRC, TGT = [4, 7, 5, 8, 3], [2, 6, 9, 5]


def make(**options: Any) -> Conv:
    """Build two layers a side with different widths and kernels.

    Noise is added to every initial weight.
    """
    sizes: dict[str, Any] = {
        "width": 6,
        "embedding": 4,
        "output_embedding": 5,
        "max_positions": 20,
        "encoder": {"layers": 2, "widths": [6, 8], "kernels": [3, 2]},
        "decoder": {"layers": 2, "widths": [8, 6], "kernels": [2, 3]},
    }
    for side in ("encoder", "decoder"):
        sizes[side] = {**sizes[side], **options.pop(side, {})}
    config = ConvConfig.model_validate({**sizes, **options})
    torch.manual_seed(1)
    model = Conv(config, 13, 11).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


class Equations:
    """The formulas of the papers for one sentence pair; ``p`` holds the parameters by name."""

    def __init__(self, model: Conv, config: ConvConfig):
        self.p = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        self.config = config

    def linear(self, name: str, x: Any) -> Any:
        """w = g v / |v|, row by row (Salimans and Kingma 2016)."""
        v, g = self.p[f"{name}.v"], self.p[f"{name}.g"]
        w = np.array([g[i] * v[i] / np.sqrt((v[i] ** 2).sum()) for i in range(len(v))])
        return x @ w.T + self.p[f"{name}.bias"]

    def embed(self, side: str, ids: list[int]) -> Any:
        tokens = self.p[f"{side}.tokens.weight"][ids]
        positions = self.p[f"{side}.positions.weight"][: len(ids)]
        if self.config.separate_maps:
            position_map = self.linear(f"{side}.position_map", positions)
            return self.linear(f"{side}.map", tokens) + position_map
        return self.linear(f"{side}.map", tokens + positions)

    def glu_conv(self, name: str, x: Any, kernel: int, before: int) -> Any:
        """Gehring et al. 2017, section 3.2.

        Y = W [x_i; ...; x_{i+k}] + b and v([A B]) = A * sigmoid(B).
        """
        rows = []
        for t in range(len(x)):
            seen = [
                x[s] if 0 <= s < len(x) else np.zeros(x.shape[1])
                for s in range(t - before, t - before + kernel)
            ]
            a, b = np.split(self.linear(f"{name}.conv", np.concatenate(seen)), 2)
            rows.append(a / (1 + np.exp(-b)))
        return np.array(rows)

    def add(self, name: str, x: Any, y: Any) -> Any:
        if f"{name}.through.v" in self.p:
            x = self.linear(f"{name}.through", x)
        return (x + y) * HALF

    def attention(self, name: str, z: Any, target: Any, sources: list[Any], source: Any) -> Any:
        """Attention to n sources h_j, summed and multiplied by sqrt(1/n) sqrt(S).

        Keys are T_j h_j, values (T_j h_j + e_src) sqrt(1/2).
        """
        q = (self.linear(f"{name}.query", z) + target) * HALF
        total = np.zeros_like(q)
        for j, h in enumerate(sources):
            k = self.linear(f"memory.{j}", h)
            e = q @ k.T
            a = np.exp(e) / np.exp(e).sum(1, keepdims=True)
            total += a @ ((k + source) * HALF)
        return self.linear(f"{name}.out", total / np.sqrt(len(sources)) * np.sqrt(len(source)))

    def encoder(self, source: Any, dense: bool, summary: str) -> list[Any]:
        """Return h_0, h_1, h_2, or those since the summary, which is layer 1 or follows it."""
        history, module = [self.linear("encoder_in", source)], 0
        for i in range(2):
            kernel = self.config.encoder.kernel(i)
            before = (kernel - 1) // 2
            x = np.concatenate(history, 1) if dense else history[-1]
            y = self.glu_conv(f"encoder.layers.{module}", x, kernel, before)
            is_summary = summary == "in-place" and i == 0
            history.append(
                y if dense and not is_summary else self.add(f"encoder.layers.{module}", x, y)
            )
            history = history[-1:] if is_summary else history
            module += 1
            if summary == "added" and i == 0:
                x = np.concatenate(history, 1)
                name = f"encoder.layers.{module}"
                history = [
                    (self.glu_conv(name, x, kernel, before) + self.linear(f"{name}.through", x))
                    * HALF
                ]
                module += 1
        return history

    def decoder(
        self, target: Any, sources: list[Any], source: Any, dense: bool, summary: str
    ) -> Any:
        """Without ``dense``, Gehring et al. 2017.

        With it, z_{l+1} = H([a_l, z_l, ..., z_0]); each layer appends z and a.
        """
        history, module = [self.linear("decoder_in", target)], 0
        for i in range(2):
            kernel, name = self.config.decoder.kernel(i), f"decoder.layers.{module}"
            x = np.concatenate(history, 1) if dense else history[-1]
            z = self.glu_conv(name, x, kernel, kernel - 1)
            a = self.attention(name, z, target, sources, source)
            is_summary = summary == "in-place" and i == 0
            history.append(
                np.concatenate([z, a], 1)
                if dense and not is_summary
                else self.add(name, x, (z + a) * HALF)
            )
            history = history[-1:] if is_summary else history
            module += 1
            if summary == "added" and i == 0:
                x, name = np.concatenate(history, 1), f"decoder.layers.{module}"
                history = [
                    (self.glu_conv(name, x, kernel, kernel - 1) + self.linear(f"{name}.through", x))
                    * HALF
                ]
                module += 1
        return np.concatenate(history, 1) if dense else history[-1]

    def logits(self, attend: str, dense: dict[str, bool], summary: str) -> Any:
        source, target = self.embed("source", SRC), self.embed("target", TGT)
        history = self.encoder(source, dense["encoder"], summary)
        concatenated = np.concatenate(history, 1)
        top = concatenated if dense["encoder"] else history[-1]
        sources = {"top": [top], "dense-concat": [concatenated], "dense-sum": history}[attend]
        return self.linear(
            "output",
            self.linear("out", self.decoder(target, sources, source, dense["decoder"], summary)),
        )


DENSE = {"connect": {"kind": "dense", "growth": 3}}


@pytest.mark.parametrize("attend", ["top", "dense-concat", "dense-sum"])
@pytest.mark.parametrize(
    "sides", [(), ("encoder",), ("decoder",), ("encoder", "decoder"), "added", "in-place"], ids=str
)
def test_a_model_computes_the_equations_of_the_papers(attend: str, sides: Any) -> None:
    """Small BASE, DenseENC, DenseDEC, DenseAtt and DenseNMT-1 and -2, also with summary layers."""
    summary = sides if isinstance(sides, str) else ""
    summed = {
        "connect": {"kind": "dense", "growth": [3, 4], "summary_every": 1, "summary_layer": summary}
    }
    sides = ("encoder", "decoder") if summary else sides
    options = {
        side: dict(summed if summary else DENSE) if side in sides else {}
        for side in ("encoder", "decoder")
    }
    options["decoder"]["attend"] = attend
    separate = attend == "dense-sum"
    model = make(**options, separate_maps=separate)
    sizes = {
        "width": 6,
        "embedding": 4,
        "separate_maps": separate,
        "encoder": {"layers": 2, "kernels": [3, 2]},
        "decoder": {"layers": 2, "kernels": [2, 3]},
    }
    expected = Equations(model, ConvConfig.model_validate(sizes)).logits(
        attend, {side: side in sides for side in options}, summary
    )
    ids = torch.tensor([SRC])
    logits = model.output(model(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([TGT])))
    np.testing.assert_allclose(logits[0].detach().numpy(), expected, rtol=1e-9, atol=1e-10)


def test_one_buffer_has_the_gradients_of_concatenation() -> None:
    """Values and gradients of outputs that share a buffer are those of torch.cat."""
    connect = DenseConnection(DenseConnectionConfig(), "side.connect")
    pieces = [torch.randn(2, 3, width, requires_grad=True) for width in (4, 2, 3)]
    for i, piece in enumerate(pieces):
        connect.register_output(piece.shape[-1], starts_block=i == 0)
    readers = [torch.randn(width, 5) for width in (4, 6, 9)]
    stream, outputs = None, []
    total, expected = torch.zeros(()), torch.zeros(())
    for piece, reader in zip(pieces, readers, strict=True):
        stream = connect.append(stream, piece.sin())
        outputs.append(piece.sin())
        total = total + (connect(stream) @ reader).square().sum()
        expected = expected + (torch.cat(outputs, -1) @ reader).square().sum()
    torch.testing.assert_close(total, expected)
    gradients = torch.autograd.grad(total, pieces)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, pieces))


def gradients(model: Conv) -> dict[str, torch.Tensor]:
    """The gradient of each parameter on one pair."""
    ids = torch.tensor([SRC])
    model.output(
        model(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([TGT]))
    ).square().sum().backward()
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("embedding", [None, 5])
def test_gradients_of_the_encoder_are_scaled_but_not_those_of_embeddings(embedding) -> None:
    """The factor is 1 / (2 * attention layers)."""
    grads = [
        gradients(make(scale_encoder_gradient=scale, embedding=embedding))
        for scale in (False, True)
    ]
    assert any(name.startswith("source.") for name in grads[0])
    for name, plain in grads[0].items():
        scaled = name.startswith(("encoder", "memory"))
        torch.testing.assert_close(grads[1][name], plain / 4 if scaled else plain)


@pytest.mark.parametrize(
    ("attend", "factor"), [("top", 1 / 4), ("dense-concat", 1 / 4), ("dense-sum", 1)]
)
def test_gradients_of_the_encoder_are_scaled_by_default_with_one_source(
    attend: str, factor: float
) -> None:
    """The authors' code scales them in all models except those with DenseAtt-2 (dense-sum)."""
    sides = {"encoder": DENSE, "decoder": {**DENSE, "attend": attend}}
    plain = gradients(make(**sides, scale_encoder_gradient=False))
    by_default = gradients(make(**sides))
    encoder = [name for name in plain if name.startswith(("encoder", "memory"))]
    assert encoder
    torch.testing.assert_close(
        {name: by_default[name] for name in encoder},
        {name: plain[name] * factor for name in encoder},
    )


def test_dense_concat_equals_the_output_of_a_dense_encoder() -> None:
    """The attention of DenseENC and DenseAtt-1 read the same concatenation."""
    top, concat = (
        make(encoder=DENSE, decoder={**DENSE, "attend": attend})
        for attend in ("top", "dense-concat")
    )
    concat.load_state_dict(top.state_dict())
    torch.testing.assert_close(gradients(concat), gradients(top))


def test_initial_weights_are_those_of_the_paper() -> None:
    """Directions are normal, lengths those of the directions, biases zero.

    Standard deviations: sqrt(4 (1 - dropout) / (k in)) in convolutions, sqrt((1 - dropout) / in) in
    linear maps, 0.1 in embeddings.
    """
    torch.manual_seed(2)
    sizes = {
        "width": 128,
        "embedding": 96,
        "separate_maps": True,
        "dropout": 0.2,
        "encoder": {"layers": 2, "widths": [128, 160]},
        "decoder": {"layers": 1},
    }
    model: Any = Conv(ConvConfig.model_validate(sizes), 400, 300)
    conv = model.encoder.layers[0].conv
    for weight, std in (
        (conv.v, (4 * 0.8 / (3 * 128)) ** 0.5),
        (model.encoder_in.v, (0.8 / 128) ** 0.5),
        (model.memory[0].v, (1 / 160) ** 0.5),
        (model.output.v, (0.8 / 96) ** 0.5),
        (model.source.map.v, (0.8 / 96) ** 0.5),
        (model.target.position_map.v, (0.8 / 96) ** 0.5),
        (model.encoder.layers[1].through.v, (0.8 / 128) ** 0.5),
        (model.source.tokens.weight, 0.1),
        (model.source.positions.weight, 0.1),
    ):
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.05)
    torch.testing.assert_close(conv.weight, conv.v)
    assert not conv.bias.any() and not model.output.bias.any()


@pytest.mark.parametrize("kind", ["adam", "adamw", "nag"])
def test_cached_weights_follow_training(kind: str) -> None:
    """Fused optimisers change parameters without changing their version counter."""
    model = make().float()
    config = OPTIMIZERS[kind].Config.model_validate({"kind": kind})
    optimizer = OPTIMIZERS[kind](config, model.parameters())
    for _ in range(2):
        model.eval()
        with torch.inference_mode():
            cached = model.out.weight
            assert model.out.weight is cached
        torch.testing.assert_close(cached, model.out.weight.detach())
        model.train()
        model.out(torch.ones(1, model.out.v.shape[1])).sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        optimizer.step()


def test_cached_weights_follow_loaded_weights() -> None:
    model, other = make().eval(), make().eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    with torch.inference_mode():
        before = model.out.weight
        model.load_state_dict(other.state_dict())
        assert not torch.equal(model.out.weight, before)
        torch.testing.assert_close(model.out.weight, other.out.weight)


@pytest.mark.parametrize("sizes", [{"width": 6}, {"width": 6, "embedding": 6}])
def test_separate_maps_need_projected_embeddings(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="set `embedding` to another number"):
        ConvConfig.model_validate({**sizes, "separate_maps": True})


def test_each_layer_has_its_width_and_its_kernel() -> None:
    model = make(encoder={"widths": [8, 10]}, decoder={"attend": "layerwise"})
    assert [layer.conv.kernel for layer in model.encoder.layers] == [3, 2]
    assert [layer.conv.kernel for layer in model.decoder.layers] == [2, 3]
    assert [layer.conv.width for layer in model.encoder.layers] == [8, 8]
    assert [layer.width for layer in model.encoder.layers] == [8, 10]
    assert model.attend.widths == (8, 10), "those of the layers, without the embedding"


@pytest.mark.parametrize(
    ("side", "key"), [("encoder", "widths"), ("decoder", "kernels"), ("decoder", "growth")]
)
def test_lists_need_a_number_for_each_layer(side: str, key: str) -> None:
    wrong: dict[str, Any] = {key: [3, 3, 3]}
    if key == "growth":
        wrong = {"connect": {"kind": "dense", "growth": [3, 3, 3]}}
    with pytest.raises(ValueError, match="one number, or one for each layer"):
        make(**{side: wrong})
