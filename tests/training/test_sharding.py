"""A model that is sharded over processes has the same training and the same checkpoints."""

from pathlib import Path

import pytest
import torch
from test_distributed import PLAIN

from fusetk import runs
from fusetk import train as train_module
from fusetk import weights as weights_module
from fusetk.recipe import load
from fusetk.runs import EMA, MODEL, TRAINING
from tests.helpers.forks import Forks, train
from tests.helpers.metrics import records

SHARD = "training.shard=true"


def close(actual_run: Path, expected_run: Path, update: int, *files: str) -> None:
    """Check that two checkpoints have the same names and shapes, and values equal to rounding."""
    for file in files:
        actual, expected = (
            weights_module.read_tensors(run / "checkpoints" / runs.checkpoint_name(update), file)
            for run in (actual_run, expected_run)
        )
        assert actual.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(
                actual[name], expected[name], rtol=1e-4, atol=1e-6, msg=f"{file}: {name}"
            )


def test_sharded_and_unsharded_training_resume_each_other(toy: Path, tmp_path: Path) -> None:
    """One process starts, two sharded processes resume, and one process ends the training.

    The result is that of one process alone. The model has tied embeddings, a parameter that is not
    sharded, and recomputed layers. Training has accumulation, clipping, EMA and search.
    """
    model = [
        "model.tie=target",
        "model.norm=pre",
        "model.encoder={layers: 2, checkpoint: true}",
        "model.decoder={layers: 2, checkpoint: true, "
        "fuse: {kind: linear, weights: matrix, aggregation: ewp-ffn}}",
    ]
    overrides = [
        *PLAIN,
        *model,
        "training.ema=0.9",
        "training.stages.0.clip=0.5",
        "training.stages.0.batch.accumulate=2",
    ]
    overrides += ["training.validation.every_updates=3", "training.stages.0.end.updates=9"]
    overrides += ["training.validation.share_pairs=20"]
    train_module.train(
        load(toy, [*overrides, "training.stages.0.end.updates=3"]),
        tmp_path / "parts",
        "cpu",
        quiet=True,
    )
    sharded = [*overrides, "training.stages.0.end.updates=6", SHARD]
    said = train(toy, tmp_path / "parts", sharded, 2).succeed()
    assert (
        "2 processes, sharded" in said
        and "resumed after update 3" in said
        and "returned a view" not in said
    )
    train_module.train(
        load(toy, [*overrides, SHARD]), tmp_path / "parts", "cpu", quiet=True
    )  # with one process, sharding has no effect
    train_module.train(load(toy, overrides), tmp_path / "one", "cpu", quiet=True)
    for update in (6, 9):
        close(tmp_path / "parts", tmp_path / "one", update, MODEL, TRAINING, EMA)
    for actual, expected in zip(
        records(tmp_path / "parts", "valid"), records(tmp_path / "one", "valid"), strict=True
    ):
        assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-4) and actual[
            "bleu"
        ] == pytest.approx(expected["bleu"], abs=0.5)
        shares = [line["layer_shares"]["decoder.fuse"] for line in (actual, expected)]
        assert shares[0] == pytest.approx(shares[1], rel=1e-3)
    norms = [
        next(
            line["grad_norms"] for line in records(tmp_path / name, "train") if line["update"] == 6
        )
        for name in ("parts", "one")
    ]
    assert norms[0].keys() == norms[1].keys() == {"encoder", "decoder", "other parts"}
    for group in norms[0]:
        assert norms[0][group] == pytest.approx(norms[1][group], rel=1e-3)


BACKBONES = """
from contextlib import suppress
import torch
from fusetk.data.batch import Batch
from fusetk.machine import device_of
from fusetk.models.stack import Stack
from fusetk.nn.dropout import Dropout
from fusetk.processes import connect
from fusetk.training.parallel import all_reduce_gradients
from fusetk.training.sharding import gather, local, shard, sharded, unsharded
from fusetk.training.update import accumulate_gradients
from tests.contracts.systems import SYSTEMS

world = connect(device_of("cpu"))


def batch(rows, source, target, seed):
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(3, 9, (rows, source), generator=generator)
    tgt = torch.randint(3, 9, (rows, target), generator=generator)
    mask = torch.ones_like(src, dtype=torch.bool)
    mask[-1, source // 2 :] = False
    return Batch(src, mask, tgt, tgt.roll(-1, 1), torch.arange(rows * target))


without_tokens = batch(1, 6, 4, 4)._replace(target_index=torch.arange(0))
batches_of_ranks = [
    [batch(3, 5, 7, 1), batch(2, 6, 4, 2)],
    [batch(2, 4, 6, 3), without_tokens],
]
for name in NAMES or SYSTEMS:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(SYSTEMS[name]().train())
        for module in models[-1].modules():
            if isinstance(module, Dropout):
                module.set_rate(0.0)
    plain, split = models
    before = {n: p.detach().clone() for n, p in plain.named_parameters()}
    shard(split, world)
    local_size = sum(local(p).numel() for p in split.parameters())
    assert local_size < 0.65 * sum(p.numel() for p in plain.parameters()), (name, local_size)
    for batches in batches_of_ranks:
        accumulate_gradients(plain, batches, 0.1, "fp32", 41)
    accumulate_gradients(split, batches_of_ranks[world.rank], 0.1, "fp32", 41)
    all_reduce_gradients(world, split)
    gradients = gather({n: p.grad for n, p in split.named_parameters()}, True)
    largest = max(float(p.grad.abs().max()) for p in plain.parameters())
    for n, p in plain.named_parameters():
        # Some gradients are rounding errors only, such as those of the biases of keys.
        tolerance = 1e-4 * float(p.grad.abs().max()) + 1e-6 * largest
        assert torch.allclose(gradients[n], p.grad, rtol=1e-4, atol=tolerance), (name, n)
    with unsharded(split), torch.inference_mode():
        for model in models:
            model.eval()
        for step in range(1 + 2 * world.rank):  # the number of steps differs between processes
            data = batch(2, 3 + step, 1, 5)
            states = [m.start(m.encode(data.src, data.src_mask)) for m in models]
            features = [m.decode(data.tgt_in, state)[0] for m, state in zip(models, states)]
            logits = [m.output(f) for m, f in zip(models, features)]
            assert torch.equal(*logits), name
    last = [module for module in split.modules() if hasattr(module, "unshard")][-1]
    last.unshard = lambda: 1 / 0
    with suppress(ZeroDivisionError), unsharded(split):
        raise AssertionError("the last part was not gathered")
    del last.unshard
    assert sum(local(p).numel() for p in split.parameters()) == local_size, name
    after = gather({n: p.detach() for n, p in split.named_parameters()}, True)
    assert all(torch.equal(after[n], p) for n, p in before.items()), name
    split.train()
    accumulate_gradients(split, batches_of_ranks[world.rank], 0.1, "fp32", 41)  # training continues
print("all", flush=True)
world.close()
"""


def backbones(names: list[str], processes: int) -> None:
    said = Forks([], processes, f"NAMES = {names!r}\n{BACKBONES}").succeed(seconds=500)
    assert said.count("all") == processes, said


def test_gradients_and_search_of_each_backbone() -> None:
    """Gradients are sums over the processes. One process has a batch without target tokens.

    Each process stores about half of the parameters, also after it failed to gather all of them.
    """
    names = [
        "transformer",
        "conv",
        "coordinated",
        "recurrent",
        "coordinated, post-norm, recomputed",
        "coordinated, pre-norm, projections of the target",
        "transformer, decoder fuse iterative",
    ]
    backbones(names, 2)


@pytest.mark.slow
def test_gradients_and_search_of_every_system() -> None:
    backbones([], 2)


ZERO_GRADIENTS = """
import torch
from fusetk.machine import device_of
from fusetk.nn.weightnorm import NormedLinear
from fusetk.processes import connect
from fusetk.training.sharding import shard
from tests.training.test_zero_gradients import UPDATES, Gated, warnings

world = connect(device_of("cpu"))
torch.manual_seed(0)
model = Gated()
shard(model, world)
torch.manual_seed(world.rank)
[warning] = warnings(model, UPDATES, world=world)
assert ": left, right, unused.weight; " in warning, warning
own = torch.nn.Sequential(NormedLinear(3, 3, 1.0))
own.layers = lambda: [own[0]]
shard(own, world)
assert not warnings(own, UPDATES, 0.0, world)
print("named", flush=True)
world.close()
"""


def test_parameters_whose_gradient_remains_zero_are_named() -> None:
    assert Forks([], 2, ZERO_GRADIENTS).succeed().count("named") == 2


OPTIMIZERS = {
    "adam": "{kind: adam, weight_decay: 0.1, eps: 1e-3}",
    "adamw": "{kind: adamw, weight_decay: 0.1, eps: 1e-3}",
    "sgd": "{kind: sgd, momentum: 0.5}",
    "adafactor": "{kind: adafactor, eps: [1e-4, 1e-3]}",
    "adafactor with a mean": "{kind: adafactor, eps: [1e-4, 1e-3], beta1: 0.9}",
}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimiser_trains_the_same_in_shards(
    toy: Path, tmp_path: Path, optimizer: str
) -> None:
    """Shards have unequal sizes. Three processes start the training and one process ends it.

    With the chosen eps, gradients that are only rounding errors do not become steps.
    """
    overrides = [
        "model.dropout=0",
        f"training.stages.0.optimizer={optimizer}",
        "model.positions=learned",
        "model.max_positions=8",
    ]
    overrides += [
        "training.stages.0.schedule={kind: constant, rate: 0.01}",
        "training.save_every=3",
    ]
    begun = [*overrides, SHARD, "training.stages.0.end.updates=5"]
    train(toy, tmp_path / "split", begun, 3).succeed()
    train_module.train(load(toy, overrides), tmp_path / "split", "cpu", quiet=True)
    train_module.train(load(toy, overrides), tmp_path / "one", "cpu", quiet=True)
    close(tmp_path / "split", tmp_path / "one", 8, MODEL, TRAINING)


@pytest.mark.slow
def test_a_process_may_have_nothing_to_do(toy: Path, tmp_path: Path) -> None:
    """Three processes and two pairs an update."""
    overrides = [*PLAIN, "training.stages.0.batch={size: 2, unit: sentences}"]
    train(toy, tmp_path / "split", [*overrides, SHARD], 3).succeed()
    train_module.train(load(toy, overrides), tmp_path / "one", "cpu", quiet=True)
    close(tmp_path / "split", tmp_path / "one", 8, MODEL, TRAINING)


@pytest.mark.slow
def test_gradients_that_are_not_finite_are_skipped_by_all(toy: Path, tmp_path: Path) -> None:
    diverging = (
        "training.stages=[{optimizer: nag, schedule: {kind: constant, rate: 1e30}, "
        "end: {updates: 90}}]"
    )
    said = train(toy, tmp_path / "run", [diverging, SHARD], 2).fail()
    assert said.count("5 updates in a row after update") == 2


@pytest.mark.slow
def test_a_signal_in_validation_and_its_resume(toy: Path, tmp_path: Path) -> None:
    """The signal arrives in the middle of a layer of one process. Validation uses the EMA."""
    overrides = ["training.ema=0.9", "training.validation.metric=bleu", SHARD]
    signal = (
        "import signal\nfrom fusetk.models import transformer\n"
        "plain = transformer.TransformerEncoderLayer.forward\n"
        "def forward(self, *arguments):\n"
        "    if not self.training and os.environ['RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return plain(self, *arguments)\n"
        "transformer.TransformerEncoderLayer.forward = forward\n"
    )
    said = train(toy, tmp_path / "parts", overrides, 2, signal).fail()
    assert "received: saved after update 4" in said
    said = train(toy, tmp_path / "parts", overrides, 2).succeed()
    assert "resumed after update 4" in said
    train(toy, tmp_path / "whole", overrides, 2).succeed()
    for file in (MODEL, TRAINING, EMA):
        whole, parts = (
            (tmp_path / name / "checkpoints" / runs.checkpoint_name(8) / file).read_bytes()
            for name in ("whole", "parts")
        )
        assert whole == parts, file


@pytest.mark.slow
def test_a_sharded_batch_that_does_not_fit_into_memory_is_an_error(
    toy: Path, tmp_path: Path
) -> None:
    fail = (
        "from fusetk.training import gradients as module\nplain = module.accumulate_gradients\n"
        "def gradients(*arguments):\n"
        "    if os.environ['RANK'] == '1': raise RuntimeError(\"can't allocate memory\")\n"
        "    return plain(*arguments)\nmodule.accumulate_gradients = gradients\n"
    )
    said = train(toy, tmp_path / "run", [SHARD], 2, fail).fail()
    assert (
        "target tokens does not fit into memory (can't allocate memory), "
        "and with training.shard it cannot be split" in said
    )
