"""The table "Which code computes a layer" of CONTRIBUTING.md."""

from typing import Any

import pytest
import torch
from torch import nn

from fusetk import trace
from fusetk.decoding import alignment
from fusetk.decoding.beam import search
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.target_scores import batch_of_ids, score_targets
from fusetk.models import cpu_inference
from fusetk.models.coordinated import Coordinated
from fusetk.models.quantization import to_kernels
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.transformer import Transformer
from fusetk.nn.attention import SelfAttention
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.inference_linear import kernels_are_faster
from tests.contracts.systems import SYSTEMS
from tests.decoding.fakes import batch

pytestmark = pytest.mark.skipif(
    not fused_decoding.has_products(torch.float32),
    reason="there is no C++ compiler, or the processor has no products",
)

PAIRS = [([4, 5, 6, 2], [4, 5]), ([7, 2], [6])]
SOURCES = [source for source, _ in PAIRS]
PACKED = "packed sentences"
PADDED = "self-attention in ordinary code, with padding"
ENCODER = "encoder layer in kernels"
DECODER = "decoder layer in kernels"
WHOLE = "decoder layer in one call"
ATTENTION = "only the attention of a decoder layer in kernels"


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The codes that ran; a test may clear them."""
    ran: set[str] = set()

    def observe(owner: Any, name: str, code: str) -> None:
        function = getattr(owner, name)

        def observed(*args: Any, **options: Any) -> Any:
            ran.add(code)
            return function(*args, **options)

        monkeypatch.setattr(owner, name, observed)

    observe(Transformer, "decode_packed", PACKED)
    observe(Coordinated, "decode_packed", PACKED)
    observe(SelfAttention, "_mix", PADDED)
    observe(cpu_inference, "run_encoder_layer", ENCODER)
    observe(cpu_inference, "run_decoder_layer", DECODER)
    observe(cpu_inference, "_attention_in_kernels", ATTENTION)
    observe(fused_decoding, "run_decoder_layer", WHOLE)
    monkeypatch.setitem(kernels_are_faster[torch.float32], "maps", True)
    return ran


@pytest.fixture(params=["transformer", "coordinated"])
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return SYSTEMS[request.param]()


def encoder_code(model: Seq2Seq) -> str:
    return ENCODER if isinstance(model, Transformer) else PADDED


def translate(model: Seq2Seq) -> None:
    search([model], *batch(SOURCES), SearchConfig(beam=2, max_length_extra=4))


def hook(module: nn.Module) -> None:
    module.register_forward_hook(lambda *args: None)


def test_a_loss_on_cpu(model: Seq2Seq, codes: set[str]) -> None:
    data = batch_of_ids(PAIRS)
    arguments = data.src, data.src_mask, data.tgt_in, data.target_index
    model(*arguments)
    assert codes == {PACKED}
    codes.clear()
    model.packs = False
    model(*arguments)
    assert codes == {PADDED}


def test_search(model: Seq2Seq, codes: set[str]) -> None:
    translate(model)
    assert codes == {encoder_code(model), DECODER}
    codes.clear()
    translate(to_kernels(model))
    assert codes == {encoder_code(model), DECODER, WHOLE}
    codes.clear()
    with trace.listen(alignment.PATTERN):
        translate(model)
    assert codes == {encoder_code(model), DECODER}


def test_forced_decoding(model: Seq2Seq, codes: set[str]) -> None:
    score_targets([model], PAIRS)
    assert codes == {encoder_code(model), PADDED}
    codes.clear()
    score_targets([model], [(source, []) for source in SOURCES])  # one token: BOS
    assert codes == {encoder_code(model), DECODER}


@torch.inference_mode()
def test_a_listener_for_self_attention(codes: set[str]) -> None:
    model: Any = SYSTEMS["transformer"]()
    with trace.listen("encoder.layer1.self"):
        model.encode(*batch(SOURCES))
    assert codes == {ENCODER, PADDED}  # the second layer remains in kernels
    state = model.start(model.encode(*batch(SOURCES)))
    codes.clear()
    tokens = torch.tensor([[1], [1]])
    with trace.listen("decoder.layer1.self"):
        _, later = model.decode(tokens, state)
    assert codes == {PADDED} and later.per_sentence is not None
    # A search that began in kernels continues there.
    _, state = model.decode(tokens, state)
    codes.clear()
    with trace.listen("decoder.layer1.self"):
        _, state = model.decode(torch.tensor([[4, 5], [6, 7]]), state)
    assert codes == {DECODER} and state.per_sentence is None


def test_hooks(codes: set[str]) -> None:
    model: Any = SYSTEMS["transformer"]()
    hook(model.decoder.layers[0].ffn)
    translate(model)
    assert codes == {ENCODER, DECODER, ATTENTION}
    codes.clear()
    hook(model.decoder.layers[1].attention)
    translate(model)
    assert codes == {ENCODER, PADDED}
    codes.clear()
    for layer in model.encoder.layers:
        hook(layer.ffn.out)
    translate(model)
    assert codes == {PADDED}


def test_another_residual_connection(codes: set[str]) -> None:
    translate(SYSTEMS["transformer, residual layer-scale and laurel-weights"]())
    assert ATTENTION in codes


def test_without_kernels(model: Seq2Seq, codes: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_decoding, "library", lambda name: None)
    translate(model)
    score_targets([model], PAIRS)
    assert codes == {PADDED}
