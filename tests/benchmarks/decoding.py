"""Measure the decoding speed of configs.

    python tests/benchmarks/decoding.py CONFIG [CONFIG ...] [--precision fp32 bf16 int8]

The data of each config must be prepared; trained models are not needed. Weights are random, and
every translation has --length tokens, so all systems take the same steps. The configs take turns.
The script prints the median speed over the turns, in sentences a second, and its ratio to that of
the first config. It also prints the median ratio to the limit: the time that the float32 products
of the search would take at the rate of one large product, measured in the same turn. On CPU, all
times are processor times. If ctranslate2 is installed, it translates with the same weights in the
same turns (plain Transformers with sinusoidal positions and post-norm, on CPU), and the script
prints the ratio to its float32 and int8.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fusetk import system
from fusetk.data.corpus import Corpus
from fusetk.data.pipeline import Pipeline
from fusetk.decoding.translate import Translator
from fusetk.errors import ConfigError
from fusetk.machine import device_of
from fusetk.models import Seq2Seq
from fusetk.models.quantization import to_bf16, to_int8, to_kernels
from fusetk.models.transformer import Transformer
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.positions import sinusoids
from fusetk.recipe import load
from fusetk.runs import TEXT
from fusetk.ways import one_thread

from turns import compare, options  # isort: skip

try:
    import ctranslate2
except ImportError:
    ctranslate2 = None

CT2_TYPES = ("float32", "int8")


def turns(path: str, precision: str, arguments: argparse.Namespace) -> Iterator[float]:
    """Yield sentences a second; the first value is warm-up."""
    recipe = load(path, arguments.overrides)
    device = device_of(arguments.device)
    corpus = Corpus.open(Path(recipe.data.folder), "valid")
    pipeline = Pipeline.load(Path(recipe.data.folder) / TEXT)
    sizes = arguments.vocabulary or (len(pipeline.source_vocab), len(pipeline.target_vocab))
    model = system.build(recipe, *sizes).to(device).eval()
    length = {
        "min_length": arguments.length,
        "max_length_factor": 0,
        "max_length_extra": arguments.length,
    }
    config = recipe.decoding.model_copy(update={"beam": arguments.beam, **length})
    sources = [corpus.source[i].tolist() for i in range(min(arguments.sentences, len(corpus)))]
    peers = {}
    if ctranslate2 and device.type == "cpu":
        peers = {kind: peer(model, kind, sources, arguments) for kind in CT2_TYPES}
    plain = Translator([model], pipeline, config)
    # The counter sees no other threads.
    with FlopCounterMode(display=False) as counter, without_kernels(), one_thread():
        plain.translate_ids(sources)
    work = product_operations(counter)
    model = {"fp32": to_kernels, "bf16": to_bf16, "int8": to_int8}[precision](model)
    translator = Translator([model], pipeline, config)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    ratios: dict[str, list[float]] = {"the limit of float32": []}
    while True:
        rate = product_rate(device, clock)
        start = clock()
        translator.translate_ids(sources)
        seconds = clock() - start
        ratios["the limit of float32"].append(work / rate / seconds)
        for kind, translate in peers.items():
            start = clock()
            translate()
            ratios.setdefault(f"CTranslate2 {kind}", []).append((clock() - start) / seconds)
        yield len(sources) / seconds
        for name, values in ratios.items():  # the first turn is warm-up
            arguments.notes[path, precision, name] = statistics.median(values[1:] or values)


def product_operations(counter: FlopCounterMode) -> int:
    """Return the operations of the counted matrix products with weights."""
    by_operator = counter.get_flop_counts()["Global"]
    return sum(by_operator.get(name, 0) for name in (torch.ops.aten.mm, torch.ops.aten.addmm))


@contextmanager
def without_kernels() -> Iterator[None]:
    """Let the search use torch's operators only, which the counter knows."""
    library = fused_decoding.library
    fused_decoding.library = lambda name: None  # type: ignore[assignment]
    try:
        yield
    finally:
        fused_decoding.library = library


def product_rate(device: torch.device, clock: Callable[[], float]) -> float:
    """Return the operations a second of one large float32 product, repeated for a short time."""
    a, b = (torch.ones(1024, 1024, device=device) for _ in range(2))
    a @ b
    start = clock()
    for _ in range(10):
        a @ b
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 10 * 2 * 1024**3 / (clock() - start)


# CTranslate2 --------------------------------------------------------------------------------------


def peer(
    model: Seq2Seq, kind: str, sources: list[list[int]], arguments: argparse.Namespace
) -> Callable[[], object]:
    """Return a function that translates ``sources`` with CTranslate2 and the model's weights."""
    if not isinstance(model, Transformer):
        raise ConfigError("CTranslate2 has no such model: uninstall it for this benchmark")
    with tempfile.TemporaryDirectory() as folder:
        write_model(model, folder)
        translator = ctranslate2.Translator(
            folder, compute_type=kind, intra_threads=torch.get_num_threads(), inter_threads=1
        )
    lines = [[str(token) for token in source] for source in sources]
    return lambda: translator.translate_batch(
        lines,
        beam_size=arguments.beam,
        max_batch_size=64,
        min_decoding_length=arguments.length,
        max_decoding_length=arguments.length,
    )


def write_model(model: Transformer, folder: str) -> None:
    """Write a Transformer in CTranslate2's format; its tokens are the ids."""
    from ctranslate2.specs import TransformerSpec, common_spec

    width = model.output.weight.shape[1]
    encoder, decoder = model.encoder.layers, model.decoder.layers
    spec = TransformerSpec.from_config(
        (len(encoder), len(decoder)),
        encoder[0].attention.heads,  # type: ignore[union-attr, arg-type]
        pre_norm=False,
        activation=common_spec.Activation.RELU,
    )
    parts = ((spec.encoder, encoder, model.source), (spec.decoder, decoder, model.target))
    for side, layers, embedding in parts:
        target = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        target.weight = embedding.tokens.weight.detach().numpy()
        side.scale_embeddings = math.sqrt(width)
        side.position_encodings.encodings = sinusoids(1024, width).numpy()
        for to, layer in zip(side.layer, layers, strict=True):
            write_layer(to, layer)
    linear(spec.decoder.projection, model.output)
    names = [
        ["<pad>", "<unk>", "<s>", "</s>", *map(str, range(4, len(part.tokens.weight)))]
        for part in (model.source, model.target)
    ]
    spec.register_source_vocabulary(names[0])
    spec.register_target_vocabulary(names[1])
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = spec.config.bos_token = "<s>"
    spec.config.eos_token, spec.config.unk_token = "</s>", "<unk>"
    spec.validate()
    spec.optimize()
    spec.save(folder)


def write_layer(to: Any, layer: Any) -> None:
    attention = to.self_attention
    for part, source in zip(
        attention.linear, (layer.attention.project, layer.attention.out), strict=True
    ):
        linear(part, source)
    norm(attention.layer_norm, layer.attention_residual.norm)
    if hasattr(layer, "cross"):
        cross = (layer.cross.query, layer.cross.project[0], layer.cross.out)
        for part, source in zip(to.attention.linear, cross, strict=True):
            linear(part, source)
        norm(to.attention.layer_norm, layer.cross_residual.norm)
    linear(to.ffn.linear_0, layer.ffn.hidden)
    linear(to.ffn.linear_1, layer.ffn.out)
    norm(to.ffn.layer_norm, layer.ffn_residual.norm)


def linear(to: Any, source: Any) -> None:
    to.weight = source.weight.detach().numpy()
    if source.bias is not None:
        to.bias = source.bias.detach().numpy()


def norm(to: Any, source: Any) -> None:
    to.gamma = source.weight.detach().numpy()
    to.beta = source.bias.detach().numpy()


def decoding_parser() -> argparse.ArgumentParser:
    parser = options(__doc__, ("fp32", "bf16", "int8"))
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length", type=int, default=14, help="tokens of every translation")
    parser.add_argument(
        "--sentences", type=int, default=200, help="sentences of the validation set in a turn"
    )
    parser.set_defaults(notes={})
    return parser


def main() -> None:
    arguments = decoding_parser().parse_args()
    with torch.inference_mode():
        compare(arguments, turns, "sentences/s")
    for (config, precision, name), ratio in arguments.notes.items():
        print(f"{config} {precision}: {ratio:.2f} of {name}")


if __name__ == "__main__":
    main()
