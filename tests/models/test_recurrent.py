"""The recurrent backbone: its equations, its options and its errors."""

import copy

import pytest
import torch
from pydantic import ValidationError

from fusetk import trace
from fusetk.data.vocab import PAD
from fusetk.errors import ConfigError
from fusetk.models.recurrent import Recurrent, RecurrentConfig
from fusetk.nn import recurrence
from fusetk.nn.fused import build as build_kernels
from fusetk.nn.nested import select
from tests.contracts.systems import SOURCE_SIZE, SYSTEMS, TARGET_SIZE, build
from tests.helpers.batches import random_batch
from tests.models import plain_recurrent as plain

NAMES = [name for name in SYSTEMS if name.startswith("recurrent")]


def make(**options) -> Recurrent:
    model = build("recurrent", **options)
    assert isinstance(model, Recurrent)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_features_and_gradients_are_those_of_a_plain_loop(name: str) -> None:
    """The reference computes word by word and gate by gate in double precision."""
    model, data = SYSTEMS[name](), random_batch()
    in_double = copy.deepcopy(model).double()
    real = torch.zeros(data.tgt_in.shape, dtype=torch.bool)
    real.view(-1)[data.target_index] = True
    weight = torch.randn(*data.tgt_in.shape, 1) * real[..., None]
    features = model(data.src, data.src_mask, data.tgt_in)
    expected = plain.features(in_double, data.src, data.src_mask, data.tgt_in)
    torch.testing.assert_close(features[real].double(), expected[real], rtol=1e-4, atol=1e-4)
    (features * weight).sum().backward()
    (expected * weight).sum().backward()
    for (parameter, ours), reference in zip(
        model.named_parameters(), in_double.parameters(), strict=True
    ):
        if reference.grad is None or ours.grad is None:
            assert parameter.startswith("output.") and reference.grad is ours.grad is None, (
                parameter
            )
        else:
            torch.testing.assert_close(
                ours.grad.double(),
                reference.grad,
                rtol=1e-3,
                atol=1e-4 * float(reference.grad.abs().max()),
                msg=parameter,
            )


def test_padding_changes_no_feature_before_it() -> None:
    model, data = make(), random_batch()
    lengths = torch.tensor([3, 6, 1, 4, 2])
    padded = data.tgt_in.masked_fill(torch.arange(6) >= lengths[:, None], PAD)
    short, full = (model(data.src, data.src_mask, ids) for ids in (padded, data.tgt_in))
    for i, length in enumerate(lengths):
        torch.testing.assert_close(short[i, :length], full[i, :length])


@pytest.mark.parametrize("name", NAMES)
def test_fused_kernels_run_in_bf16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if build_kernels.library("recurrence") is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(
        recurrence, "_run_step_by_step", lambda *arguments: pytest.fail("the plain loop runs")
    )
    model, data = SYSTEMS[name](), random_batch()
    with torch.autocast("cpu", torch.bfloat16):
        model(data.src, data.src_mask, data.tgt_in).float().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_hypotheses_in_one_call_are_those_decoded_alone(dtype: torch.dtype) -> None:
    """Hypotheses of several tokens, one of them padded, one all padding; also their gradients."""
    model, data = make(init=0.15), random_batch()
    twice = torch.cat((data.tgt_in, data.tgt_in.flip(1)), 1).view(10, 6)
    twice[3, 2:], twice[6] = PAD, PAD
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        state = model.start(model.encode(data.src, data.src_mask))
        state = state._replace(
            per_hypothesis=select(state.per_hypothesis, torch.arange(5).repeat_interleave(2))
        )
        together, _ = model.decode(twice, state)
        alone = torch.stack(
            [model(data.src, data.src_mask, twice[k::2]) for k in range(2)], 1
        ).flatten(0, 1)
    for row, length in enumerate([6, 6, 6, 2, 6, 6, 1, 6, 6, 6]):
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(
            together[row, :length], alone[row, :length], rtol=tolerance, atol=tolerance
        )
    if dtype == torch.float32:
        keep = torch.arange(6) < torch.tensor([6, 6, 6, 2, 6, 6, 1, 6, 6, 6])[:, None]
        grads = [
            torch.autograd.grad((features * keep[..., None]).sum(), model.attention.query)[0]
            for features in (together, alone)
        ]
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-5)


def test_the_first_target_token_is_read_as_zeros() -> None:
    model, data = make(), random_batch()
    with torch.no_grad():
        other = data.tgt_in.clone()
        other[:, 0] = (other[:, 0] - 3) % 4 + 4
        a, b = (model(data.src, data.src_mask, ids) for ids in (data.tgt_in, other))
    assert torch.equal(a, b)


def test_positions_are_scaled_and_optional() -> None:
    """Sines and cosines times 1 / sqrt(E) (Meng and Zhang 2019, "Advanced Techniques")."""
    with_them, without = make(), make(positions="none")
    ids = torch.tensor([[4, 5, 4]])
    added = with_them.source(ids, start=3) - without.source(ids, start=3)
    torch.testing.assert_close(added[0], with_them.source.positions(3, 3) / 4)


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_target_word_has_the_chosen_position(first: int) -> None:
    """Reading all tokens at once and token by token agree; position 0 is sin 0, cos 0, ..."""
    model = make(first_target_position=first)
    ids = torch.tensor([[1, 4, 5, 6]])
    plain = model.target.tokens(ids) + model.target.bias
    vectors = model.target.positions(first, 3) / 4
    torch.testing.assert_close(model.target(ids)[0, 1:], plain[0, 1:] + vectors)
    torch.testing.assert_close(model.target(ids[:, 2:3], start=2)[0], plain[0, 2:3] + vectors[1:2])
    torch.testing.assert_close(model.source(ids), make().source(ids))
    data = random_batch()
    together = model(data.src, data.src_mask, data.tgt_in)
    state = model.start(model.encode(data.src, data.src_mask))
    steps = []
    for t in range(data.tgt_in.shape[1]):
        features, state = model.decode(data.tgt_in[:, t : t + 1], state)
        steps.append(features)
    torch.testing.assert_close(torch.cat(steps, 1), together, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_bf16_model_keeps_its_state_in_float32(
    has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``fusetk decode --precision bf16`` uses such a model."""
    if not has_kernels:
        monkeypatch.setattr(recurrence.fused_recurrence, "usable", lambda *_: False)
    model, data = make(init=0.15), random_batch()
    with torch.inference_mode():
        expected = model(data.src, data.src_mask, data.tgt_in)
        model = model.to(torch.bfloat16)
        features = model(data.src, data.src_mask, data.tgt_in)
        state = model.start(model.encode(data.src, data.src_mask))
        for t in range(2):
            step, state = model.decode(data.tgt_in[:, t : t + 1], state)
            torch.testing.assert_close(step[:, 0].float(), expected[:, t], rtol=0.1, atol=0.05)
    assert features.dtype == torch.bfloat16 and state.per_hypothesis[0].dtype == torch.float32
    torch.testing.assert_close(features.float(), expected, rtol=0.1, atol=0.05)


def test_a_projected_input_follows_loaded_weights() -> None:
    model, other = make(project_context=True).eval(), make(project_context=True).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    data = random_batch()
    with torch.inference_mode():
        model(data.src, data.src_mask, data.tgt_in)
        model.load_state_dict(other.state_dict())
        expected = other(data.src, data.src_mask, data.tgt_in)
        assert torch.equal(model(data.src, data.src_mask, data.tgt_in), expected)


def test_each_dropout_rate_has_an_effect() -> None:
    data = random_batch()
    none = {"embedding_dropout": 0.0, "candidate_dropout": 0.0, "output_dropout": 0.0}
    for name in none:
        model = make(**{**none, name: 0.5}).train()
        torch.manual_seed(1)
        features = model(data.src, data.src_mask, data.tgt_in)
        torch.manual_seed(1)
        assert torch.equal(model(data.src, data.src_mask, data.tgt_in), features)
        assert not torch.allclose(model(data.src, data.src_mask, data.tgt_in), features)
        assert ((features == 0).float().mean() > 0.3) == (name == "output_dropout")


def test_the_state_of_a_hypothesis_is_one_vector() -> None:
    model, data = make(), random_batch()
    state = model.start(model.encode(data.src, data.src_mask))
    assert [tensor.shape for tensor in state.per_hypothesis] == [(5, 16)]
    _, state = model.decode(data.tgt_in[:, :1], state)
    assert [tensor.shape for tensor in state.per_hypothesis] == [(5, 16)]


def test_attention_weights_are_recorded() -> None:
    """They are those of the layer that makes the query; each row is a distribution over tokens."""
    model, data = make(query={"depth": 2}, decoder={"attend": "dense-sum"}), random_batch()
    with trace.listen() as recorded, torch.no_grad():
        model(data.src, data.src_mask, data.tgt_in)
    [weights] = recorded["decoder.layer3.cross"]
    assert weights.shape == (5, 2 * 3, 6, 7)  # heads of three sources
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, 6, 6))
    assert not (weights * ~data.src_mask[:, None, None]).any()


@pytest.mark.parametrize("biases", [False, True])
def test_initial_weights_are_those_of_the_paper(biases: bool) -> None:
    """Uniform in [-0.08, 0.08], with or without the biases."""
    torch.manual_seed(0)
    config = RecurrentConfig(width=64, heads=4, init_biases="uniform" if biases else "zero")
    model = Recurrent(config, SOURCE_SIZE, TARGET_SIZE)
    for name, parameter in model.named_parameters():
        end = name.rsplit(".", 1)[-1]
        if end == "shift" or (end in ("bias", "linear_bias") and not biases):
            assert not parameter.any(), name
        elif end == "gain":
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert 0.07 < parameter.abs().max() <= 0.08, name
            assert parameter.numel() < 200 or parameter.detach().mean().abs() < 0.01, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": {"attend": "layerwise"}}, "a recurrent decoder has only one"),
        (
            {"decoder": {"attend": "dense-sum"}, "encoder": {"fuse": "average"}},
            "only the first state of the decoder would depend",
        ),
        ({"heads": 3}, "not a multiple of heads 3"),
        ({"encoder": {"cell": "t-gru"}}, "Input should be 'gru', 'lau' or 'l-gru'"),
        ({"decoder": {"fuse": {"kind": "tree", "leaves": 8}}}, "fuse: tree has 8 leaves, and this"),
        ({"encoder": {"connect": "dense"}}, r"encoder\.connect\n  Extra inputs are not permitted"),
        (
            {
                "linear_bias": False,
                **{part: {"cell": "gru"} for part in ("encoder", "query", "decoder")},
            },
            "linear_bias: false has no effect with cell: gru",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make(**options)


@pytest.mark.parametrize("cell", ["l-gru", "lau"])
def test_a_single_linear_map_can_be_without_bias(cell: str) -> None:
    gru = {"cell": "gru"}
    model = make(linear_bias=False, encoder=gru, query=gru, decoder={"cell": cell})
    assert "decoder.cells.0.linear_bias" not in dict(model.named_parameters())


def test_heads_must_divide_the_width_that_is_attended_to() -> None:
    with pytest.raises(ConfigError, match="not a multiple of heads 16"):
        make(heads=16, embedding=6, decoder={"attend": "dense-concat"})


def test_one_matrix_for_both_sides_needs_one_vocabulary() -> None:
    with pytest.raises(ConfigError, match="one vocabulary"):
        make(tie="all")
