"""The rules that training and search expect of a model, verified before a training.

The contract tests verify them for the classes of fusetk. ``verify`` is for models with classes
outside fusetk: with a class that breaks a rule, training may seem to go well, and only the
translations are wrong.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fusetk.config import place_outside_libraries
from fusetk.data.batch import pad
from fusetk.errors import ConfigError, FusetkError
from fusetk.fusion.base import LayerFusion
from fusetk.models.residual import Residual, StreamEnds
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.nested import select
from fusetk.nn.outputs import class_name
from fusetk.special_tokens import BOS, EOS, SPECIAL

SOURCE_LENGTHS = (3, 8, 5)  # of the sentences, with EOS
TARGET_LENGTHS = (6, 4, 7)  # with BOS
# Largest difference between two computations of the same logits, relative to the largest logit.
# Differences of rounding are below it; a broken rule makes larger ones.
TOLERANCE = 1e-3


def verify(model: Seq2Seq, source_size: int, target_size: int, kinds: Sequence[str]) -> None:
    """Raise ConfigError if a model breaks a rule, or if it cannot compute.

    The vocabulary sizes include the special tokens. ``kinds`` are the classes outside fusetk, for
    the error. The model and the random numbers stay as they are.
    """
    names = " or ".join(kinds)
    if next(model.parameters(), None) is None:
        raise ConfigError(
            f"a model with {names} has no parameters: does its __init__ call super().__init__ with "
            "all arguments?"
        )
    for problem in _wrong_classes(model):
        raise ConfigError(problem)
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            for rule, first, second in _computations(model, source_size, target_size):
                if not first.isfinite().all():
                    raise ConfigError(
                        f"a model with {names} has logits that are not finite before any update: "
                        "correct the initial weights and the divisions of the class"
                    )
                scale = max(1.0, float(first.abs().max()))
                difference = float((first - second).abs().max())
                if not difference <= TOLERANCE * scale:
                    raise ConfigError(
                        f"a model with {names} breaks a rule: {rule}. The logits differ by up to "
                        f"{difference:.3g}. Correct the class; the section Rules of "
                        "docs/extending.md explains this"
                    )
    except FusetkError:
        raise
    except Exception as error:
        raise ConfigError(
            f"a model with {names} cannot compute: {type(error).__name__}: "
            f"{' '.join(str(error).split())}{place_outside_libraries(error)}"
        ) from error
    finally:
        model.train(training)


def _wrong_classes(model: Seq2Seq) -> Iterator[str]:
    """Yield a sentence for each mistake in a class outside fusetk that needs no computation."""
    registered = {id(part) for part in (*model.modules(), *model.parameters())}
    for module in model.modules():
        if type(module).__module__.partition(".")[0] in ("fusetk", "torch"):
            continue
        cls: Any = type(module)
        if (
            isinstance(module, LayerFusion)
            and cls.fuse is LayerFusion.fuse
            and cls.forward is not LayerFusion.forward
        ):
            yield (
                f"{class_name(module)} replaces forward of LayerFusion, so the options norm, "
                "norm_layers and add_top would have no effect: implement fuse instead, or make it "
                "a subclass of Fusion"
            )
        if (
            isinstance(module, Residual)
            and cls.Ends.open is not StreamEnds.open
            and not cls.spans_layers
        ):
            yield (
                f"the stream of {class_name(module)} is not one tensor, because its Ends has a "
                "method open: set spans_layers = True"
            )
        for name, value in vars(module).items():
            if name.startswith("_"):  # those of nn.Module
                continue
            parts = value.values() if isinstance(value, dict) else value
            parts = list(parts) if isinstance(value, dict | list | tuple) else [value]
            for part in parts:
                is_weight = isinstance(part, Tensor) and part.requires_grad
                if (is_weight or isinstance(part, nn.Module)) and id(part) not in registered:
                    yield (
                        f"{class_name(module)}.{name} holds a {type(part).__name__} that is not "
                        "registered, so it is neither trained nor saved: use nn.ModuleList, "
                        "nn.ModuleDict, nn.Parameter or nn.ParameterList"
                    )


def _computations(
    model: Seq2Seq, source_size: int, target_size: int
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield rules, each with two computations of the same logits."""
    generator = torch.Generator().manual_seed(1)

    def words(size: int, count: int) -> list[int]:
        lowest = min(len(SPECIAL), size - 1)
        return torch.randint(lowest, size, (count,), generator=generator).tolist()

    longest = model.max_positions or max(SOURCE_LENGTHS + TARGET_LENGTHS)
    sources = [[*words(source_size, min(n, longest) - 1), EOS] for n in SOURCE_LENGTHS]
    targets = [[BOS, *words(target_size, min(n, longest) - 1)] for n in TARGET_LENGTHS]
    device = next(model.parameters()).device
    src, src_mask = (tensor.to(device) for tensor in pad(sources))
    tgt_in, tgt_mask = (tensor.to(device) for tensor in pad(targets))
    index = tgt_mask.flatten().nonzero()[:, 0]
    lengths = (src_mask.sum(1).cpu(), tgt_mask.sum(1).cpu())

    def real(features: Tensor) -> Tensor:
        return model.output(features.flatten(0, 1)[index]).float()

    padded = real(model(src, src_mask, tgt_in))
    state = model.start(model.encode(src, src_mask))
    steps = []
    for token in tgt_in.split(1, dim=1):
        features, state = model.decode(token, state)
        steps.append(features)
    yield (
        "a target must have the same result when it is read token by token, as in search, and "
        "complete, as in training; so a position must not read later ones, and a module must not "
        "store values of a pass",
        real(torch.cat(steps, 1)),
        padded,
    )
    alone = [
        model(src[i : i + 1, : len(s)], src_mask[i : i + 1, : len(s)], tgt_in[i : i + 1, : len(t)])
        for i, (s, t) in enumerate(zip(sources, targets, strict=True))
    ]
    yield (
        "a sentence must have the same result alone and in a batch, whose other sentences and "
        "padding it must not read",
        model.output(torch.cat(alone, 1)[0]).float(),
        padded,
    )
    packed = model.output(model(src, src_mask, tgt_in, index, lengths)).float()
    yield (
        "the packed sentences of a training batch on a CPU, (1, N, D), must have the same result "
        "as padded ones (`packs = False` in the class of the model turns packing off)",
        packed,
        padded,
    )
    state = model.start(model.encode(src, src_mask))
    twice = torch.arange(len(sources), device=device).repeat_interleave(2)
    state = state._replace(per_hypothesis=select(state.per_hypothesis, twice))
    rows = tgt_in[twice]
    rows[1::2, 1:] = rows[1::2, 1:].flip(0)  # the second hypotheses have other words
    steps = []
    for token in rows.split(1, dim=1):
        features, state = model.decode(token, state)
        steps.append(features[::2])
    yield (
        "a hypothesis must not read the other hypotheses of its sentence",
        real(torch.cat(steps, 1)),
        padded,
    )
