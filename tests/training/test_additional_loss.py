"""Additional losses of modules: their weight, their positions, their errors and their records."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cuda_graphs import Repeated
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fusetk import train as train_module
from fusetk.data.batch import Batch
from fusetk.errors import ConfigError
from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.models.residual.base import ResidualConfig
from fusetk.models.residual.plain import PlainResidual
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn import additional_loss
from fusetk.processes import World
from fusetk.recipe import load
from fusetk.training.gradient_check import GradientCheck
from fusetk.training.log import Log
from fusetk.training.loss import Loss
from fusetk.training.progress import Progress
from fusetk.training.update import accumulate_gradients, add_gradients, batch_loss
from fusetk.training.verify import verify
from tests.contracts.systems import MODELS, SOURCE_SIZE, TARGET_SIZE, build, sides
from tests.helpers.batches import random_batch, select_sentences, with_lengths
from tests.helpers.forks import Forks
from tests.helpers.metrics import records


class Counting(LayerFusion):
    """Counts positions, and has a penalty on its weight and a distance of neighbouring layers."""

    Config = LayerFusionConfig

    def __init__(self, config: LayerFusionConfig, widths: Any, width: int, name: str):
        super().__init__(config, widths, width, name)
        self.one = nn.Parameter(torch.ones(()))

    def fuse(self, layers: list[Tensor]) -> Tensor:
        if additional_loss.is_collected():
            add, name = additional_loss.add_positions, self.name
            add(f"{name}.count", self.one.expand(layers[0].shape[:-1]))
            add(f"{name}.distance", (layers[0] - layers[-1]).square().mean(-1))
            additional_loss.add(f"{name}.penalty", 3 * self.one.square())
        return layers[0] + self.one * layers[-1]


class CountingResidual(PlainResidual):
    """Counts positions of sub-layers, and adds the squares of the features of the stream."""

    Config = ResidualConfig

    def __init__(self, config: ResidualConfig, sublayer: Any):
        super().__init__(config, sublayer)
        self.one = nn.Parameter(torch.ones(()))

    def after(self, stream: Any, y: Any) -> Any:
        if additional_loss.is_collected():
            add = additional_loss.add_positions
            add("decoder.count", self.one.expand(y.shape[:-1]))
            add("decoder.squares", (y * y).mean(-1))
        return super().after(stream, self.one * y)


def own(cls: type) -> dict[str, str]:
    return {"kind": f"{__name__}:{cls.__name__}"}


def counting(kind: str) -> Seq2Seq:
    fuse: Any = {side: {"fuse": own(Counting)} for side in sides(kind)}
    return with_ones(build(kind, scale=1.0, **fuse))


def with_ones(model: Seq2Seq) -> Seq2Seq:
    for name, parameter in model.named_parameters():
        if name.endswith(".one"):
            nn.init.ones_(parameter)
    return model


def with_residuals(**stack: Any) -> Seq2Seq:
    options: Any = {"stack": {"residual": own(CountingResidual), **stack}}
    return with_ones(build("coordinated", scale=1.0, dropout=0.0, **options))


def parts_of(batch: Batch) -> list[Batch]:
    """Return micro-batches of a batch; they have less padding."""
    return [_cut(select_sentences(batch, rows)) for rows in (slice(2), slice(2, None))]


def _cut(batch: Batch) -> Batch:
    """Remove the columns of padding."""
    longest = int(batch.src_mask.sum(1).max())
    return batch._replace(src=batch.src[:, :longest], src_mask=batch.src_mask[:, :longest])


def gradients(model: Seq2Seq, batches: Sequence[Batch]) -> tuple[list[Loss], dict[str, Tensor]]:
    """Return the losses and the gradients of an update of some micro-batches."""
    tokens = sum(len(batch.target_index) for batch in batches)
    losses = accumulate_gradients(model, map(with_lengths, batches), 0.1, "fp32", tokens)
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return losses, grads


def sums(losses: Sequence[Loss]) -> dict[str, float]:
    names = {name for each in losses for name in each.additional}
    return {name: sum(float(each.additional[name]) for each in losses) for name in names}


@pytest.mark.parametrize("kind", MODELS)
def test_the_weight_of_a_loss_does_not_depend_on_the_split(kind: str) -> None:
    model, batch = counting(kind), random_batch()
    whole, expected = gradients(model, [batch])
    split, actual = gradients(model, parts_of(batch))
    assert len(split) == 2 and sums(split) == pytest.approx(sums(whole), rel=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    if model.packs:
        model.packs = False
        padded, same = gradients(model, [batch])
        assert sums(padded) == pytest.approx(sums(whole), rel=1e-5)
        torch.testing.assert_close(same, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MODELS)
def test_only_real_positions_are_counted(kind: str, precision: str) -> None:
    model, batch = counting(kind), random_batch()
    tokens = len(batch.target_index)
    losses = add_gradients(model, with_lengths(batch), 0.1, precision, 1.0).additional
    counts = {"encoder": int(batch.src_mask.sum()), "decoder": tokens}
    fusions = {name for name, _ in model.named_parameters() if name.endswith("fuse.one")}
    assert fusions
    for side in counts if len(fusions) == 2 else ["decoder"]:
        assert float(losses[f"{side}.fuse.count"].detach()) == counts[side]
        assert float(losses[f"{side}.fuse.penalty"].detach()) == pytest.approx(3 * tokens)


def test_a_stack_of_both_sides_counts_both() -> None:
    model, batch = with_residuals(), random_batch()
    whole, expected = gradients(model, [batch])
    tokens = len(batch.target_index)
    source = int(batch.src_mask.sum())
    # Nothing reads the output of the highest layer at source positions.
    assert sums(whole)["decoder.count"] == 4 * tokens + 2 * source
    split, actual = gradients(model, parts_of(batch))
    assert sums(split) == pytest.approx(sums(whole), rel=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_a_batch_without_target_tokens_has_no_loss() -> None:
    """A process of a sharded training may have no pairs."""
    batch = random_batch()._replace(target_index=torch.arange(0))
    empty = add_gradients(counting("transformer"), batch, 0.1, "fp32", 1.0).additional
    assert len(empty) == 6 and set(map(float, empty.values())) == {0.0}


def test_recomputed_layers_add_their_losses_once() -> None:
    batch = random_batch()
    expected = gradients(with_residuals().train(), [batch])
    actual = gradients(with_residuals(checkpoint=True).train(), [batch])
    torch.testing.assert_close(actual, expected)


def test_the_objective_is_minimised() -> None:
    model, batch = counting("transformer"), random_batch()
    loss = batch_loss(model, batch, 0.1)
    assert loss.objective > loss.smoothed
    weight: Any = model.get_parameter("decoder.fuse.one")
    [expected] = torch.autograd.grad(sum(loss.additional.values(), loss.smoothed), weight)
    model.zero_grad()
    add_gradients(model, batch, 0.1, "fp32", 1.0)
    torch.testing.assert_close(weight.grad, expected)


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("transformer", "to_output"),
        ("coordinated", "to_output"),
        ("conv", "dropout"),
        ("recurrent", "output_dropout"),
    ],
)
@pytest.mark.parametrize("packs", [True, False])
def test_the_cross_entropy_of_the_features_is_the_loss(kind: str, last: str, packs: bool) -> None:
    """``targets`` has the tokens in the order of the features."""
    model, batch = build(kind, scale=1.0).train(), with_lengths(random_batch())

    def supervise(module: nn.Module, arguments: Any, features: Tensor) -> None:
        shape = features.shape[:-1]
        targets = additional_loss.targets(shape).flatten()
        losses = F.cross_entropy(model.output(features).flatten(0, -2), targets, reduction="none")
        additional_loss.add_positions("decoder.top", losses.view(shape))

    model.get_submodule(last).register_forward_hook(supervise)
    model.packs = packs and model.packs
    loss = batch_loss(model, batch, 0.0)
    torch.testing.assert_close(loss.additional["decoder.top"], loss.nll)


def test_evaluation_collects_nothing() -> None:
    model, batch = counting("transformer"), random_batch()
    for mode in (model.train(), model.eval()):
        with torch.inference_mode():
            assert not batch_loss(mode, batch, 0.0).additional
    assert not additional_loss.is_collected()
    additional_loss.add("no valid name", torch.zeros(3))


def test_cuda_graphs_have_the_losses() -> None:
    batch = random_batch()
    expected = add_gradients(counting("transformer"), batch, 0.1, "fp32", 1.0).additional
    graphs = Repeated(counting("transformer"), 0.1, "fp32")
    for _ in range(3):
        actual = graphs.add_gradients(batch, 1.0).additional
        torch.testing.assert_close(actual, expected)
    assert len(graphs.graphs) == 1


# Errors and warnings


@pytest.mark.parametrize(
    ("name", "value", "per_position", "error"),
    [
        (
            "decoder",
            "scalar",
            False,
            "'decoder' needs a name that begins with encoder. or decoder.",
        ),
        ("penalty", "scalar", False, "'penalty' needs a name"),
        ("decoder.a", "vector", False, r"'decoder.a' has the shape \(7,\): give a scalar"),
        ("decoder.a", 0.5, False, "has the type float: give a scalar tensor"),
        ("decoder.a", "detached", False, "does not require a gradient"),
        ("encoder.a", "vector", True, r"values of the shape \(7,\): .* layers of the encoder"),
        ("decoder.a", "scalar", True, r"values of the shape \(\): "),
    ],
)
def test_wrong_losses_are_refused(name: str, value: Any, per_position: bool, error: str) -> None:
    scalar = torch.ones((), requires_grad=True)
    values = {"scalar": scalar, "vector": scalar.expand(7), "detached": scalar.detach()}
    batch = random_batch()
    add = additional_loss.add_positions if per_position else additional_loss.add
    with (
        additional_loss.collect(batch.src_mask, batch.tgt_out, batch.target_index),
        pytest.raises(ConfigError, match=error),
    ):
        add(name, values.get(value, value))


def test_the_gradient_of_a_loss_that_is_not_finite_is_not_finite() -> None:
    """The logarithm of -1 is NaN, and its derivative is -1."""
    weight, batch = torch.tensor(-1.0, requires_grad=True), random_batch()
    with additional_loss.collect(batch.src_mask, batch.tgt_out, batch.target_index) as losses:
        additional_loss.add("decoder.a", weight.log())
    losses["decoder.a"].backward()
    assert weight.grad is not None and weight.grad.isnan()


def test_a_layer_can_be_recomputed_twice() -> None:
    batch, layer = random_batch(), nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)

    def losing(x: Tensor) -> Tensor:
        y = layer(x)
        additional_loss.add("decoder.a", y.sum())
        return y

    with additional_loss.collect(batch.src_mask, batch.tgt_out, batch.target_index) as losses:
        context = additional_loss.recomputation
        y = checkpoint(losing, x, use_reentrant=False, context_fn=context).sum()
    before = losses["decoder.a"]
    y.backward(retain_graph=True)
    first = layer.weight.grad.clone()
    y.backward()
    assert torch.equal(layer.weight.grad, 2 * first) and losses == {"decoder.a": before}


class MeanOfBatch(Counting):
    """A loss that is not a sum over the sentences of a batch."""

    def fuse(self, layers: list[Tensor]) -> Tensor:
        distances = (layers[0] - layers[-1]).square().mean((0, 1))
        additional_loss.add(f"{self.name}.mean", distances.sqrt().sum())
        return super().fuse(layers)


class NotFinite(Counting):
    def fuse(self, layers: list[Tensor]) -> Tensor:
        additional_loss.add(f"{self.name}.log", (self.one - 1).log())
        return super().fuse(layers)


class RootOfZero(Counting):
    def fuse(self, layers: list[Tensor]) -> Tensor:
        additional_loss.add(f"{self.name}.root", (self.one - 1).sqrt())
        return super().fuse(layers)


def verified(cls: type) -> list[str]:
    model = with_ones(build("transformer", decoder={"fuse": own(cls)}))
    return verify(model, SOURCE_SIZE, TARGET_SIZE, ["a:B"])


def test_the_verification_accepts_losses() -> None:
    assert not verified(Counting)
    assert not verify(with_residuals(), SOURCE_SIZE, TARGET_SIZE, ["a:B"])


def test_a_loss_that_depends_on_the_size_of_batches_gets_a_warning() -> None:
    [warning] = verified(MeanOfBatch)
    assert "the additional loss 'decoder.fuse.mean' of a batch is not the sum" in warning


@pytest.mark.parametrize(
    ("cls", "error"),
    [
        (NotFinite, "the additional loss 'decoder.fuse.log' is not finite with the initial weig"),
        (RootOfZero, "the gradient of decoder.fuse.one is not finite"),
    ],
)
def test_the_verification_refuses_losses_that_are_not_finite(cls: type, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        verified(cls)


@pytest.mark.parametrize(
    ("others", "named"),
    [([], "decoder.a"), ([["decoder.a"], ["decoder.c"], []], "decoder.a, decoder.c")],
)
def test_a_skipped_update_names_the_losses_that_are_not_finite(
    tmp_path: Path, others: list[list[str]], named: str
) -> None:
    """Another process may have computed them. ``others`` are those of the other processes."""
    world = World()
    world.all_gather = lambda value: [value, *others]  # type: ignore[method-assign]
    with Log(tmp_path, quiet=True) as log:
        check = GradientCheck("fp32", 5, tmp_path, log, world)
        losses = {"decoder.a": torch.tensor(math.nan), "decoder.b": torch.tensor(1.0)}
        check.check(Progress(), math.nan, [torch.arange(2).numpy()], losses)
    said = f"(not finite: {named}; prepared training pairs 1, 2; "
    assert said in (tmp_path / "log.txt").read_text()


# Records


def test_a_training_records_each_loss(toy: Path, tmp_path: Path) -> None:
    """The values of an update are those of all its batches."""
    settings = [f"model.decoder.fuse={own(Counting)['kind']}", "training.log_every=1"]
    settings.append("training.stages.0.batch.accumulate=2")
    train_module.train(load(toy, settings), tmp_path / "run", "cpu", quiet=True)
    updates, validations = (records(tmp_path / "run", kind) for kind in ("train", "valid"))
    assert len(updates) == 8 and len(validations) == 2
    for record in updates:
        penalty = 3 * record["decoder.fuse.count"] ** 2  # one value for each target token
        assert record["decoder.fuse.penalty"] == pytest.approx(penalty)
    assert not any("decoder.fuse.count" in record for record in validations)
    assert (
        "  decoder.fuse.count 1.0000  decoder.fuse.distance "
        in (tmp_path / "run" / "log.txt").read_text()
    )


SHARDED = """
import torch
from fusetk.machine import device_of
from fusetk.processes import connect
from fusetk.training.parallel import all_reduce_gradients
from fusetk.training.sharding import gather, shard
from fusetk.training.update import accumulate_gradients
from test_additional_loss import counting, parts_of, random_batch, with_residuals

world = connect(device_of("cpu"))
parts = parts_of(random_batch())
without_tokens = parts[0]._replace(target_index=torch.arange(0))
for build in (
    lambda: counting("transformer"), with_residuals, lambda: with_residuals(checkpoint=True).train()
):
    plain, split = build(), build()
    shard(split, world)
    accumulate_gradients(plain, [*parts, parts[0]], 0.1, "fp32", 20)
    batches = [parts, [parts[0], without_tokens]][world.rank]
    accumulate_gradients(split, batches, 0.1, "fp32", 20)
    all_reduce_gradients(world, split)
    gradients = gather({n: p.grad for n, p in split.named_parameters()}, True)
    for n, p in plain.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(gradients[n], p.grad, rtol=1e-4, atol=1e-5)
print("all", flush=True)
world.close()
"""


@pytest.mark.slow
def test_sharded_models_have_the_losses() -> None:
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    assert Forks([], 2, f"{path}\n{SHARDED}").succeed(seconds=500).count("all") == 2
