"""Training records the gradient norm of each layer and its share in the fusions."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusetk import system
from fusetk import train as train_module
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.errors import ConfigError
from fusetk.evaluation.layer_shares import mean_shares
from fusetk.models.parts import layers_and_parts
from fusetk.models.seq2seq import Seq2Seq
from fusetk.recipe import load
from fusetk.runs import MODEL
from fusetk.training.reporter import part_norms
from fusetk.training.sharding import clip_gradients
from fusetk.training.update import UpdateStats
from fusetk.training.validation import Validator, check_shares
from fusetk.weights import read_state
from tests.contracts.systems import SYSTEMS
from tests.helpers.metrics import records

FUSED = [
    "model.encoder={layers: 2, fuse: linear}",
    "model.decoder={layers: 2, fuse: {kind: attention, hops: 2}}",
]
SHARES = "training.validation.share_pairs=7"


def test_norms_of_parts_add_up_to_the_gradient_norm(toy: Path, tmp_path: Path) -> None:
    recipe = load(toy, [*FUSED, "training.log_every=1", "training.stages.0.clip=0.1"])
    train_module.train(recipe, tmp_path / "run", "cpu", quiet=True)
    recorded = records(tmp_path / "run", "train")
    assert len(recorded) == 8
    for record in recorded:
        groups = record["grad_norms"]
        assert list(groups["encoder"]) == list(groups["decoder"]) == ["l1", "l2"]
        assert {"encoder.fuse", "decoder.fuse"} < groups["other parts"].keys()
        norms = [norm for names in groups.values() for norm in names.values()]
        assert all(norm > 0 for norm in norms)
        assert math.hypot(*norms) == pytest.approx(record["grad_norm"], rel=1e-5)


def test_skipped_updates_and_unused_parts_have_no_norm() -> None:
    used, unused = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    parts = {used: ("encoder", "l1"), unused: ("encoder", "l2")}
    zero = torch.zeros(())
    updates = [
        UpdateStats(zero, zero, norm, [used], torch.tensor([norm])) for norm in (3.0, math.nan, 5.0)
    ]
    assert part_norms(updates, parts) == {"encoder": {"l1": 4.0, "l2": 0.0}}
    assert part_norms(updates[1:2], parts) == {}


def test_shares_are_those_of_the_checkpoint_and_do_not_change_training(
    toy: Path, tmp_path: Path
) -> None:
    plain, run = tmp_path / "plain", tmp_path / "run"
    train_module.train(load(toy, FUSED), plain, "cpu", quiet=True)
    train_module.train(load(toy, [*FUSED, "training.stages.0.end.updates=4"]), run, "cpu", True)
    recipe = load(toy, [*FUSED, SHARES])  # a resumed run may record them
    train_module.train(recipe, run, "cpu", quiet=True)
    last = "checkpoints/last"
    assert read_state(run / last)["sha256"][MODEL] == read_state(plain / last)["sha256"][MODEL]
    first, second = records(run, "valid")
    assert "layer_shares" not in first
    shares = second["layer_shares"]
    corpus = Corpus.open(Path(recipe.data.folder), "valid")
    assert len(corpus) == 40
    pairs = [
        (corpus.source[i].tolist(), corpus.target[i][:-1].tolist())
        for i in (0, 6, 13, 20, 26, 32, 39)
    ]
    expected = mean_shares(system.load_model(run / last, "cpu").model, pairs)
    assert shares.keys() == expected.keys() == {"encoder.fuse", "decoder.fuse"}
    for fusion in expected:
        assert shares[fusion] == pytest.approx(expected[fusion], rel=1e-5)
        assert list(expected[fusion]) == ["l0", "l1", "l2"]
        assert sum(expected[fusion].values()) == pytest.approx(1)


def test_shares_of_a_model_that_has_diverged_are_not_recorded(toy: Path) -> None:
    recipe = load(toy, [*FUSED, SHARES])
    data = Path(recipe.data.folder)
    pipeline = Pipeline.load(data / "text")
    model = system.build(recipe, len(pipeline.source_vocab), len(pipeline.target_vocab))
    validator = Validator(recipe.training.validation, recipe.decoding, data, pipeline)
    assert validator.validate_part(model, "fp32").layer_shares
    for parameter in model.parameters():
        nn.init.constant_(parameter, math.nan)
    assert validator.validate_part(model, "fp32").layer_shares is None


def test_shares_of_a_model_without_fusion_are_refused(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"share_pairs needs a fusion .* remove share_pairs$"):
        train_module.train(load(toy, [SHARES]), tmp_path / "run", "cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_shares_of_a_fusion_that_cannot_be_traced_are_refused(toy: Path) -> None:
    class Twice(torch.autograd.Function):
        """A function without a forward-mode derivative."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    model = system.build(load(toy, FUSED), 20, 20)
    fusion: Any = model.get_submodule("encoder.fuse")
    fusion.combination = lambda history: (history, lambda layers: Twice.apply(layers[0]))
    with pytest.raises(ConfigError, match=r"share_pairs: encoder\.fuse: .*jvp.*; remove the key"):
        check_shares(model)


@pytest.mark.parametrize("max_norm", [0.5, 1e3, math.inf])
def test_clipping_equals_that_of_torch(max_norm: float) -> None:
    torch.manual_seed(1)
    clipped = [nn.Parameter(torch.zeros(n, 3)) for n in (4, 1, 7)]
    for parameter in clipped:
        parameter.grad = torch.randn_like(parameter)
    clipped_by_torch = [nn.Parameter(torch.zeros_like(parameter)) for parameter in clipped]
    for a, b in zip(clipped, clipped_by_torch, strict=True):
        assert a.grad is not None
        b.grad = a.grad.clone()
    before = [parameter.grad.norm() for parameter in clipped_by_torch if parameter.grad is not None]
    norms = clip_gradients(clipped, max_norm)
    torch.testing.assert_close(norms.parameters, torch.stack(before))
    assert norms.total == pytest.approx(float(torch.stack(before).norm()))
    nn.utils.clip_grad_norm_(clipped_by_torch, max_norm)
    for a, b in zip(clipped, clipped_by_torch, strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_every_layer_is_a_part() -> None:
    for name, build in SYSTEMS.items():
        check_parts(name, build())


def check_parts(name: str, model: Seq2Seq) -> None:
    parts = layers_and_parts(model)
    assert parts.keys() == set(model.parameters())
    earlier: set[tuple[str, str]] = set()
    for layer in model.layers():
        of_layer = {parts[parameter] for parameter in layer.parameters()}
        assert len(of_layer) <= 1 and not of_layer & earlier, (name, of_layer)
        earlier |= of_layer
