"""The recurrent backbone: its equations, its options, what it refuses."""

import copy

import pytest
import torch
from pydantic import ValidationError

from fusetk import trace
from fusetk.data.vocab import PAD
from fusetk.errors import ConfigError
from fusetk.models import seq2seq
from fusetk.models.recurrent import Recurrent, RecurrentConfig
from fusetk.nn import recurrence
from fusetk.nn.fused import build as build_kernels
from fusetk.nn.nested import select
from tests.contracts.systems import SOURCE_SIZE, SYSTEMS, TARGET_SIZE, build
from tests.helpers.batches import random_batch
from tests.models import plain_recurrent as plain

NAMES = [name for name in SYSTEMS if name.startswith("recurrent")]


def made(**options) -> Recurrent:
    model = build("recurrent", **options)
    assert isinstance(model, Recurrent)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_word_by_word_and_gate_by_gate(name: str) -> None:
    """Features and all gradients, beside the plain loop in double precision."""
    model, found = SYSTEMS[name](), random_batch()
    twice = copy.deepcopy(model).double()
    real = torch.zeros(found.tgt_in.shape, dtype=torch.bool)
    real.view(-1)[found.real] = True
    weight = torch.randn(*found.tgt_in.shape, 1) * real[..., None]
    ours = model(found.src, found.src_mask, found.tgt_in)
    theirs = plain.features(twice, found.src, found.src_mask, found.tgt_in)
    torch.testing.assert_close(ours[real].double(), theirs[real], rtol=1e-4, atol=1e-5)
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    for (parameter, mine), other in zip(model.named_parameters(), twice.parameters(), strict=True):
        if other.grad is None or mine.grad is None:
            assert parameter.startswith("output.") and other.grad is mine.grad is None, parameter
        else:
            torch.testing.assert_close(
                mine.grad.double(),
                other.grad,
                rtol=1e-3,
                atol=1e-4 * float(other.grad.abs().max()),
                msg=parameter,
            )


def test_rows_that_are_over_are_not_computed() -> None:
    """Padding of the target, given as such, changes nothing before it."""
    model, found = made(), random_batch()
    lengths = torch.tensor([3, 6, 1, 4, 2])
    padded = found.tgt_in.masked_fill(torch.arange(6) >= lengths[:, None], PAD)
    one, other = (model(found.src, found.src_mask, ids) for ids in (padded, found.tgt_in))
    for i, length in enumerate(lengths):
        torch.testing.assert_close(one[i, :length], other[i, :length])


def test_padding_has_one_number() -> None:
    assert seq2seq.PAD == PAD


@pytest.mark.parametrize("name", NAMES)
def test_kernels_run_in_bf16_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if build_kernels.library() is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(recurrence, "_plain", lambda *given: pytest.fail("the plain loop runs"))
    model, found = SYSTEMS[name](), random_batch()
    with torch.autocast("cpu", torch.bfloat16):
        model(found.src, found.src_mask, found.tgt_in).float().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_hypotheses_of_several_words_and_a_padded_one(dtype: torch.dtype) -> None:
    """Each beside itself alone, and its gradients."""
    model, found = made(init=0.15), random_batch()
    twice = torch.cat((found.tgt_in, found.tgt_in.flip(1)), 1).view(10, 6)
    twice[3, 2:], twice[6] = PAD, PAD
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        state = model.start(model.encode(found.src, found.src_mask))
        state = state._replace(moving=select(state.moving, torch.arange(5).repeat_interleave(2)))
        together, _ = model.decode(twice, state)
        alone = torch.stack(
            [model(found.src, found.src_mask, twice[k::2]) for k in range(2)], 1
        ).flatten(0, 1)
    for row, length in enumerate([6, 6, 6, 2, 6, 6, 1, 6, 6, 6]):
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(
            together[row, :length], alone[row, :length], rtol=tolerance, atol=tolerance
        )
    if dtype == torch.float32:
        keep = torch.arange(6) < torch.tensor([6, 6, 6, 2, 6, 6, 1, 6, 6, 6])[:, None]
        grads = [
            torch.autograd.grad((one * keep[..., None]).sum(), model.attention.query)[0]
            for one in (together, alone)
        ]
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-5)


def test_nothing_stands_before_the_first_word() -> None:
    model, found = made(), random_batch()
    with torch.no_grad():
        other = found.tgt_in.clone()
        other[:, 0] = (other[:, 0] - 3) % 4 + 4
        a, b = (model(found.src, found.src_mask, ids) for ids in (found.tgt_in, other))
    assert torch.equal(a, b)


def test_positions_are_scaled_and_may_be_left_out() -> None:
    """1 / sqrt(E) times the sines and cosines (section "Advanced Techniques")."""
    with_them, without = made(), made(positions="none")
    ids = torch.tensor([[4, 5, 4]])
    added = with_them.source(ids, start=3) - without.source(ids, start=3)
    torch.testing.assert_close(added[0], with_them.source.positions(3, 3) / 4)


def test_in_bf16_throughout() -> None:
    """As ``fusetk decode --precision bf16`` has it: the state is float32 still."""
    model, found = made(init=0.15), random_batch()
    with torch.inference_mode():
        wanted = model(found.src, found.src_mask, found.tgt_in)
        model = model.to(torch.bfloat16)
        features = model(found.src, found.src_mask, found.tgt_in)
        state = model.start(model.encode(found.src, found.src_mask))
        for t in range(2):
            step, state = model.decode(found.tgt_in[:, t : t + 1], state)
            torch.testing.assert_close(step[:, 0].float(), wanted[:, t], rtol=0.1, atol=0.05)
    assert features.dtype == torch.bfloat16 and state.moving[0].dtype == torch.float32
    torch.testing.assert_close(features.float(), wanted, rtol=0.1, atol=0.05)


def test_dropout_is_where_the_paper_has_it() -> None:
    found = random_batch()
    none = {"embedding_dropout": 0.0, "candidate_dropout": 0.0, "output_dropout": 0.0}
    for name in none:
        model = made(**{**none, name: 0.5}).train()
        torch.manual_seed(1)
        one = model(found.src, found.src_mask, found.tgt_in)
        torch.manual_seed(1)
        assert torch.equal(model(found.src, found.src_mask, found.tgt_in), one)
        assert not torch.allclose(model(found.src, found.src_mask, found.tgt_in), one)
        assert ((one == 0).float().mean() > 0.3) == (name == "output_dropout")


def test_the_state_is_one_vector() -> None:
    model, found = made(), random_batch()
    state = model.start(model.encode(found.src, found.src_mask))
    assert [tensor.shape for tensor in state.moving] == [(5, 16)]
    _, state = model.decode(found.tgt_in[:, :1], state)
    assert [tensor.shape for tensor in state.moving] == [(5, 16)]


def test_attention_shows_itself() -> None:
    """As in every backbone: heads of the layer whose state looks, each row a distribution over the words of the source."""
    model, found = made(query={"depth": 2}, decoder={"attend": "dense-sum"}), random_batch()
    with trace.listen() as heard, torch.no_grad():
        model(found.src, found.src_mask, found.tgt_in)
    [weights] = heard["decoder.layer3.cross"]
    assert weights.shape == (5, 2 * 3, 6, 7)  # heads of three sources
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, 6, 6))
    assert not (weights * ~found.src_mask[:, None, None]).any()


def test_weights_begin_as_the_paper_says() -> None:
    """Uniform in [-0.08, 0.08]."""
    torch.manual_seed(0)
    model = Recurrent(RecurrentConfig(width=64, heads=4), SOURCE_SIZE, TARGET_SIZE)
    for name, parameter in model.named_parameters():
        end = name.rsplit(".", 1)[-1]
        if end in ("bias", "linear_bias", "shift"):
            assert not parameter.any(), name
        elif end == "gain":
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert 0.07 < parameter.abs().max() <= 0.08, name
            assert parameter.numel() < 200 or parameter.detach().mean().abs() < 0.01, name


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"decoder": {"attend": "layerwise"}}, "a recurrent decoder has one"),
        (
            {"decoder": {"attend": "dense-sum"}, "encoder": {"fuse": "average"}},
            "only the decoder's first state would come",
        ),
        ({"heads": 3}, "no multiple of heads 3"),
        ({"encoder": {"cell": "t-gru"}}, "gru"),
        ({"decoder": {"fuse": {"kind": "tree", "leaves": 8}}}, "leaves"),
        ({"encoder": {"connect": "dense"}}, "connect"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(options, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        made(**options)


def test_heads_must_share_what_is_attended_to() -> None:
    with pytest.raises(ConfigError, match="no multiple of heads 16"):
        made(heads=16, embedding=6, decoder={"attend": "dense-concat"})
    with pytest.raises(ConfigError, match="one vocabulary"):
        made(tie="all")
