"""Contracts of every registered backbone, connection, fusion and attention in training."""

from collections.abc import Callable

import pytest
import torch

from fusetk.data.batch import Batch
from fusetk.models import MODELS, Seq2Seq, build_model
from fusetk.models.residual import RESIDUALS
from fusetk.training.update import UpdateStats, accumulate_gradients, batch_loss, optimizer_step
from tests.contracts.systems import (
    BACKBONES,
    DEFAULTS,
    NO_GRADIENT,
    SEARCHED,
    SOURCE_SIZE,
    SYSTEMS,
    TARGET_SIZE,
    build,
    kinds_tested_elsewhere,
    outside_fusions,
    sides,
)
from tests.helpers.batches import random_batch, select_sentences

Builder = Callable[..., Seq2Seq]
each_system = pytest.mark.parametrize("build", SYSTEMS.values(), ids=SYSTEMS.keys())


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
    tokens = sum(len(batch.target_index) for batch in batches)
    losses = accumulate_gradients(model, batches, smoothing, precision, tokens)
    return optimizer_step(model, optimizer, losses, rate, clip)


def test_an_outside_fusion_that_cannot_be_imported_is_one_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FUSETK_TEST_FUSION", "outside_none:Mix")
    with pytest.raises(pytest.fail.Exception, match="set PYTHONPATH to the folder of outside_none"):
        outside_fusions()


def test_every_backbone_has_sizes_and_two_searched_systems() -> None:
    assert set(BACKBONES) == set(MODELS)
    assert sorted(name.partition(",")[0] for name in SEARCHED) == sorted([*MODELS, *MODELS])


def test_every_residual_connection_has_a_system() -> None:
    assert kinds_tested_elsewhere("residual") | {DEFAULTS["residual"]} == set(RESIDUALS)


@pytest.mark.parametrize("kind", MODELS)
def test_defaults_are_the_connections_without_options(kind: str) -> None:
    validate = MODELS[kind].Config.model_validate
    for side in sides(kind):
        config = getattr(validate({**BACKBONES[kind].sizes, "kind": kind}), side)
        for site, default in DEFAULTS.items():
            if hasattr(config, site):
                assert getattr(config, site).kind == default


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_has_its_options(kind: str) -> None:
    config = MODELS[kind].Config.model_validate({**BACKBONES[kind].sizes, "kind": kind})
    assert build_model(config, SOURCE_SIZE, TARGET_SIZE).config is config


@pytest.mark.parametrize("kind", MODELS)
def test_learned_positions_limit_the_length(kind: str) -> None:
    if kind == "recurrent":
        assert build(kind).max_positions is None
        return
    options = {} if kind == "conv" else {"positions": "learned"}
    assert build(kind, max_positions=7, **options).max_positions == 7


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_parameter_receives_a_gradient(name: str) -> None:
    model = SYSTEMS[name]().double()
    batch_loss(model, random_batch(), 0.1).smoothed.backward()
    gradients = {
        name: 0.0 if p.grad is None else float(p.grad.abs().max())
        for name, p in model.named_parameters()
    }
    negligible = 1e-12 * max(gradients.values())  # rounding gives a gradient to useless parameters
    without = {name for name, gradient in gradients.items() if gradient <= negligible}
    expected = {
        parameter
        for kind, part in NO_GRADIENT.items()
        for parameter, _ in model.named_parameters()
        if kind in name and part in parameter
    }
    assert without == expected


@pytest.mark.parametrize("kind", MODELS)
def test_the_default_number_type_of_the_program_changes_no_gradient(kind: str) -> None:
    model = SYSTEMS[kind]().train()
    batch = random_batch()
    gradients = []
    default = torch.get_default_dtype()
    try:
        for dtype in (default, torch.float64, torch.bfloat16):
            torch.set_default_dtype(dtype)
            torch.manual_seed(1)
            model.zero_grad()
            batch_loss(model, batch, 0.1).smoothed.backward()
            gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    finally:
        torch.set_default_dtype(default)
    for changed in gradients[1:]:
        torch.testing.assert_close(changed, gradients[0])


@each_system
def test_padding_changes_nothing(build: Builder) -> None:
    model = build()
    batch = random_batch()
    features = model(batch.src, batch.src_mask, batch.tgt_in)
    rows = batch.target_index // batch.tgt_out.shape[1]
    for i in range(len(batch.src)):
        source = slice(0, int(batch.src_mask[i].sum()))
        target = slice(0, int((rows == i).sum()))
        row = slice(i, i + 1)
        alone = model(
            batch.src[row, source], batch.src_mask[row, source], batch.tgt_in[row, target]
        )
        torch.testing.assert_close(alone[0], features[i, target], rtol=1e-4, atol=1e-4)


@each_system
def test_training_without_padding_equals_training_with_it(build: Builder) -> None:
    model = build(scale=1.0)  # larger weights also enlarge the differences of rounding
    batch = random_batch()
    if not model.packs:
        pytest.skip("this model does not pack sentences")
    index = batch.target_index
    packed = model(batch.src, batch.src_mask, batch.tgt_in, index)
    padded = model(batch.src, batch.src_mask, batch.tgt_in).flatten(0, 1)[index]
    torch.testing.assert_close(packed, padded, rtol=1e-5, atol=1e-5)
    model = build().double()  # without kernels, and without differences of rounding
    packed = model(batch.src, batch.src_mask, batch.tgt_in, index)
    padded = model(batch.src, batch.src_mask, batch.tgt_in).flatten(0, 1)[index]
    grad = torch.randn_like(packed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [
        torch.autograd.grad(features, parameters, grad, allow_unused=True)
        for features in (packed, padded)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)


@each_system
def test_no_position_sees_a_later_target_word(build: Builder) -> None:
    model = build()
    batch = random_batch()
    before = model(batch.src, batch.src_mask, batch.tgt_in)
    changed = batch.tgt_in.clone()
    changed[:, 4] = (changed[:, 4] - 3) % 4 + 4
    after = model(batch.src, batch.src_mask, changed)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4], before[:, 4])


@each_system
def test_every_position_depends_on_the_source(build: Builder) -> None:
    model = build()
    batch = random_batch()
    before = model(batch.src, batch.src_mask, batch.tgt_in)
    after = model((batch.src - 3) % 7 + 4, batch.src_mask, batch.tgt_in)
    same = ((after - before).abs().amax(-1) <= 1e-3).nonzero().tolist()
    assert not same, (
        f"the features of the positions {same} (sentence, word) do not depend on the source; a "
        "fusion that may choose only the embedding does this: set embedding: false"
    )


@each_system
def test_batches_do_not_depend_on_earlier_ones(build: Builder) -> None:
    model = build()
    batch = random_batch()
    other = random_batch(3, 4, 5)
    first = model(batch.src, batch.src_mask, batch.tgt_in)
    model(other.src, other.src_mask, other.tgt_in)
    assert torch.equal(model(batch.src, batch.src_mask, batch.tgt_in), first)


@each_system
def test_accumulation_is_one_larger_batch(build: Builder) -> None:
    batch = random_batch()
    halves = [select_sentences(batch, slice(0, 2)), select_sentences(batch, slice(2, 5))]
    results = []
    for batches in ([batch], halves):
        # In evaluation mode: no dropout. Larger weights also enlarge the differences of rounding.
        model = build(scale=1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        sums = update(model, optimizer, batches, 0.1, 0.1, 0.0, "fp32")
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        results.append({"nll": sums.nll, "norm": torch.tensor(sums.grad_norm), **weights})
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "fp32") for name in SYSTEMS), *((kind, "bf16") for kind in MODELS)],
)
def test_it_learns(name: str, precision: str) -> None:
    model = SYSTEMS[name]().train()
    batch = random_batch()
    optimizer = torch.optim.Adam(model.parameters())
    losses: list[float] = []
    while len(losses) < 3 or max(losses[-3:]) >= 0.7 * losses[0]:  # low in three updates
        assert len(losses) < 20, losses
        losses.append(float(update(model, optimizer, [batch], 0.03, 0.0, 1.0, precision).nll))
