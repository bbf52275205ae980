"""What every registered backbone, connection, fusion and attention keeps to, besides decoding."""

from collections.abc import Callable

import pytest
import torch

from fusetk.data.batch import Batch
from fusetk.models import MODELS, Seq2Seq
from fusetk.training.step import UpdateStats, accumulate_gradients, batch_loss, optimizer_step
from tests.contracts.systems import SIZES, SOURCE_SIZE, SYSTEMS, TARGET_SIZE

systems = pytest.mark.parametrize("build", SYSTEMS.values(), ids=SYSTEMS.keys())


def batch(sentences: int = 5, source: int = 7, target: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(3)

    def ids(size: int, length: int) -> torch.Tensor:
        return torch.randint(4, size, (sentences, length), generator=generator)

    src_mask = torch.arange(source) < torch.randint(
        2, source + 1, (sentences, 1), generator=generator
    )
    tgt_mask = torch.arange(target) < torch.randint(
        2, target + 1, (sentences, 1), generator=generator
    )
    real = tgt_mask.flatten().nonzero()[:, 0]
    return Batch(
        ids(SOURCE_SIZE, source) * src_mask,
        src_mask,
        ids(TARGET_SIZE, target),
        ids(TARGET_SIZE, target),
        real,
    )


def part(whole: Batch, rows: slice) -> Batch:
    """Some sentences of a batch."""
    mask = torch.zeros(whole.tgt_out.shape, dtype=torch.bool)
    mask.view(-1)[whole.target_index] = True
    return Batch(*(tensor[rows] for tensor in whole[:4]), mask[rows].flatten().nonzero()[:, 0])


def update(
    model: Seq2Seq,
    optimizer: torch.optim.Optimizer,
    batches: list[Batch],
    rate: float,
    smoothing: float,
    clip: float,
    precision: str,
) -> UpdateStats:
    """Train on some batches as one update."""
    tokens = sum(len(batch.real) for batch in batches)
    losses = accumulate_gradients(model, batches, smoothing, precision, tokens)
    return optimizer_step(model, optimizer, losses, rate, clip, tokens)


def test_every_backbone_has_sizes_here() -> None:
    assert set(SIZES) == set(MODELS)


@systems
def test_every_parameter_receives_a_gradient(build: Callable[[], Seq2Seq]) -> None:
    model = build()
    batch_loss(model, batch(), 0.1).smoothed.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without


@systems
def test_padding_changes_nothing(build: Callable[[], Seq2Seq]) -> None:
    model, found = build(), batch()
    features = model(found.src, found.src_mask, found.tgt_in)
    for i in range(len(found.src)):
        s, t = (
            int(found.src_mask[i].sum()),
            int((found.target_index // found.tgt_out.shape[1] == i).sum()),
        )
        alone = model(
            found.src[i : i + 1, :s], found.src_mask[i : i + 1, :s], found.tgt_in[i : i + 1, :t]
        )
        torch.testing.assert_close(alone[0], features[i, :t], rtol=1e-4, atol=1e-4)


@systems
def test_no_position_sees_a_later_target_word(build: Callable[[], Seq2Seq]) -> None:
    model, found = build(), batch()
    before = model(found.src, found.src_mask, found.tgt_in)
    changed = found.tgt_in.clone()
    changed[:, 4] = (changed[:, 4] - 3) % 4 + 4
    after = model(found.src, found.src_mask, changed)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4], before[:, 4])


@systems
def test_the_source_is_read(build: Callable[[], Seq2Seq]) -> None:
    model, found = build(), batch()
    other = model((found.src - 3) % 7 + 4, found.src_mask, found.tgt_in)
    assert not torch.allclose(other, model(found.src, found.src_mask, found.tgt_in))


@systems
def test_nothing_leaks_from_one_batch_into_the_next(build: Callable[[], Seq2Seq]) -> None:
    model, found, other = build(), batch(), batch(3, 4, 5)
    first = model(found.src, found.src_mask, found.tgt_in)
    model(other.src, other.src_mask, other.tgt_in)
    assert torch.equal(model(found.src, found.src_mask, found.tgt_in), first)


@systems
def test_accumulation_is_one_larger_batch(build: Callable[[], Seq2Seq]) -> None:
    found = batch()
    halves = [part(found, slice(0, 2)), part(found, slice(2, 5))]
    weights = []
    for batches in ([found], halves):
        model = build()  # in evaluation mode: no dropout
        sums = update(
            model, torch.optim.SGD(model.parameters(), lr=0.0), batches, 0.1, 0.1, 0.0, "fp32"
        )
        weights.append(
            {
                "nll": sums.nll,
                "norm": torch.tensor(sums.grad_norm),
                **{n: p.detach() for n, p in model.named_parameters()},
            }
        )
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=1e-4, atol=1e-5)


@systems
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_learns(build: Callable[[], Seq2Seq], precision: str) -> None:
    model, found = build(), batch()
    optimizer = torch.optim.Adam(model.parameters())
    losses = [
        float(update(model.train(), optimizer, [found], 3e-3, 0.0, 1.0, precision).nll)
        for _ in range(100)
    ]
    assert losses[-1] < 0.6 * losses[0]
