"""Forced decoding of given translations that records the model's intermediate values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fusetk import trace
from fusetk.data.vocab import EOS, UNK
from fusetk.decoding.target_scores import IdPair, batch_of_ids, check_length, pair_batches

if TYPE_CHECKING:
    from fusetk.models.seq2seq import Seq2Seq

TOKENS = 4096  # positions of a batch: both sides, including padding

# A pair to trace if only the names and shapes of the records matter.
UNKNOWN_WORDS: IdPair = ([UNK, EOS], [UNK])


class ForwardTrace(NamedTuple):
    """The values recorded in one forward pass over B sentence pairs."""

    recorded: dict[str, Tensor]  # the last value recorded under each trace name
    inputs: dict[str, Any]  # the first argument of each watched module, in its last call
    outputs: dict[str, list[Any]]  # the results of all calls of each watched module
    lengths: dict[str, np.ndarray]  # per side (B,): positions, including EOS or BOS


def trace_forward(
    model: "Seq2Seq",
    pairs: Sequence[IdPair],
    pattern: str = "*",
    watched: Mapping[str, nn.Module] | None = None,
) -> ForwardTrace:
    """Run one forward pass in evaluation mode, without gradients, and return its records.

    Only trace names that match ``pattern`` are recorded; "" matches none. ``watched`` contains the
    modules whose inputs and outputs are recorded, by names that the caller chooses.

    The encoder reads the source, which ends with EOS; the decoder reads BOS and the target.
    Sentences are padded at the right: the first ``lengths`` positions of a recorded value belong to
    the sentence. Raises DataError if a sentence is longer than the model's positions.
    """
    check_length([model], pairs)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    batch = batch_of_ids(pairs).to(device)
    inputs: dict[str, Any] = {}
    outputs: dict[str, list[Any]] = {name: [] for name in watched or {}}

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            inputs[name] = arguments[0]
            outputs[name].append(output)

        return hook

    with (
        evaluating(model),
        torch.no_grad(),
        trace.listen(pattern) as recorded,
        ExitStack() as hooks,
    ):
        for name, module in (watched or {}).items():
            hooks.callback(module.register_forward_hook(watch(name)).remove)
        model(batch.src, batch.src_mask, batch.tgt_in)
    lengths = {
        "encoder": np.array([len(source) for source, _ in pairs]),
        "decoder": np.array([len(target) + 1 for _, target in pairs]),
    }
    last = {name: values[-1] for name, values in recorded.items()}
    return ForwardTrace(last, inputs, outputs, lengths)


def is_inside(lengths: np.ndarray, positions: int) -> np.ndarray:
    """Return whether each position belongs to the sentence: (B,) lengths -> (B, positions)."""
    return np.asarray(np.arange(positions) < lengths[:, None])


def batches(pairs: Sequence[IdPair]) -> Iterator[Sequence[IdPair]]:
    """Yield the pairs in batches of similar length."""
    sizes = [(len(source), len(target) + 1) for source, target in pairs]
    for indices in pair_batches(sizes, TOKENS):
        yield [pairs[i] for i in indices]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode; restore its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
