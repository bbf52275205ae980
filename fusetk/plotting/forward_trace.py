"""A forced pass: the model reads given translations, and what it records of itself is kept."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.data.vocab import EOS
from fusetk.decoding.target_scores import check_length, collate

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

Pairs = Sequence[
    tuple[Sequence[int], Sequence[int]]
]  # source and target ids without begin and end marks


class Pass(NamedTuple):
    """What one pass over B sentence pairs left."""

    found: dict[str, Tensor]  # by trace name, what was recorded last
    read: dict[str, Any]  # by the name that was given, what a module was fed
    lengths: dict[
        str, np.ndarray
    ]  # (B,) positions of the encoder and of the decoder, a mark counted


def forced(
    model: "Seq2Seq", pairs: Pairs, pattern: str = "*", watched: dict[str, nn.Module] | None = None
) -> Pass:
    """One pass in evaluation mode, without gradients. ``pattern`` of trace names; ``watched`` modules, by any name.

    The encoder reads the source and the end mark, the decoder the begin mark and the target; shorter sentences are padded
    at the right, so the first ``lengths`` positions of what is recorded are a sentence's own. Raises DataError for a
    sentence longer than the model's positions.
    """
    ended = [([*source, EOS], target) for source, target in pairs]
    check_length([model], ended)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    batch = collate(ended).to(device)
    read: dict[str, Any] = {}
    with evaluating(model), torch.no_grad(), trace.listen(pattern) as found, ExitStack() as hooks:
        for name, module in (watched or {}).items():
            hooks.callback(module.register_forward_pre_hook(_keep(read, name)).remove)
        model(batch.src, batch.src_mask, batch.tgt_in)
    lengths = {
        "encoder": np.array([len(source) + 1 for source, _ in pairs]),
        "decoder": np.array([len(target) + 1 for _, target in pairs]),
    }
    return Pass({name: values[-1] for name, values in found.items()}, read, lengths)


def _keep(read: dict[str, Any], name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        read[name] = arguments[0]

    return hook


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
