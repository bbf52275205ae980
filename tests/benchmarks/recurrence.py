"""Measure the speed of the loop over positions in recurrent models.

    python tests/benchmarks/recurrence.py CONFIG [CONFIG ...] [--precision fp32 bf16]

The script prints the training speed of each config, as in training.py, with three loops: the fused
loop (``fused``), the same loop by autograd (``unfused``), and a loop over words, cells and gates
(``plain``). Ratios are to the plain loop.
With --gru, configs are widths. The script compares a bidirectional GRU without normalisation with
torch's (cuDNN's on a GPU), forward and backward over 240 sentences of 15 words.
With --profile, the script prints the time of an update with each loop, and the share of matrix
products according to torch's profiler.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from fusetk.machine import device_of
from fusetk.models.recurrent import Recurrent
from fusetk.nn import recurrence
from fusetk.nn.cells import Transition
from fusetk.nn.dropout import Dropout
from fusetk.training.update import autocast
from tests.models.plain_recurrent import features

import training  # isort: skip
from turns import compare, options  # isort: skip


def plain_forward(
    model: Recurrent,
    src: torch.Tensor,
    src_mask: torch.Tensor,
    tgt_in: torch.Tensor,
    tokens: torch.Tensor,
    _lengths: object,
) -> torch.Tensor:
    """Compute ``Recurrent.forward`` with the plain loop."""
    return features(model, src, src_mask, tgt_in).flatten(0, 1)[tokens]


def loop(kind: str) -> AbstractContextManager[Any]:
    """Return a context in which recurrent models run with this loop."""
    if kind == "plain":
        return mock.patch.object(Recurrent, "forward", plain_forward)
    return (
        mock.patch.object(recurrence.fused_recurrence, "usable", lambda *_: False)
        if kind == "unfused"
        else nullcontext()
    )


def turns(name: str, precision: str, arguments: argparse.Namespace) -> Iterator[float]:
    kind, config = name.split(" ", 1)
    system = training.turns(config, precision, arguments)
    while True:
        with loop(kind):
            speed = next(system)
        yield speed


def gru(
    name: str, precision: str, arguments: argparse.Namespace, sentences: int = 240, words: int = 15
) -> Iterator[float]:
    """Yield words a second, forward and backward."""
    implementation, width = name.split()
    size = int(width)
    device = device_of(arguments.device)
    x = torch.randn(words, sentences, size, device=device, requires_grad=True)
    torch_gru = torch.nn.GRU(size, size, bidirectional=True).to(device)
    ours = Transition("gru", 0, size, size, 2, norm=False).to(device)
    for parameter in ours.parameters():
        torch.nn.init.uniform_(parameter, -(size**-0.5), size**-0.5)
    back = torch.arange(words * sentences, device=device).view(words, sentences).flip(0).flatten()

    def run() -> torch.Tensor:
        if implementation == "torch":
            output: torch.Tensor = torch_gru(x)[0]
            return output
        read = x.flatten(0, 1)
        both = torch.stack((read, read.index_select(0, back))) @ ours.input_weight
        [states] = recurrence.run_recurrence(
            ours, both, read.new_zeros(2, sentences, size), [sentences] * words, Dropout(0.0)
        ).states
        return torch.cat((states[0], states[1].index_select(0, back)), -1)

    while True:
        start = time.perf_counter()
        for _ in range(arguments.updates):
            with autocast(device, precision):
                output = run()
            output.sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        yield arguments.updates * words * sentences / (time.perf_counter() - start)


PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::baddbmm")


def profile(name: str, precision: str, arguments: argparse.Namespace) -> None:
    """Print the time of an update, and the shares of products and of the longest operations."""
    system = turns(name, precision, arguments)
    next(system)
    start = time.perf_counter()
    with torch.profiler.profile() as profiler:
        next(system)
    duration = time.perf_counter() - start
    own = {event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()}
    products = sum(own.pop(key, 0.0) for key in PRODUCTS)
    others = sorted(own.items(), key=lambda item: -item[1])[:6]
    print(
        f"{name} {precision}: {1000 * duration / arguments.updates:.0f} ms an update, "
        f"products {products / duration:.0%}; ",
        end="",
    )
    shares = [f"{key.removeprefix('aten::')} {seconds / duration:.0%}" for key, seconds in others]
    print(", ".join(shares))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--updates", type=int, default=5, help="updates a turn")
    training.add_cpu_options(parser)
    parser.add_argument("--gru", action="store_true", help="configs are widths")
    parser.add_argument(
        "--profile", action="store_true", help="print the shares of the operations, on CPU"
    )
    arguments = parser.parse_args()
    if arguments.profile:
        for config in arguments.configs:
            for precision in arguments.precision:
                for kind in ("plain", "unfused", "fused"):
                    profile(f"{kind} {config}", precision, arguments)
        return
    for config in arguments.configs:
        arguments.configs = [
            f"{kind} {config}"
            for kind in (("torch", "fused") if arguments.gru else ("plain", "unfused", "fused"))
        ]
        compare(
            arguments,
            gru if arguments.gru else turns,
            "words/s" if arguments.gru else "target tokens/s",
        )


if __name__ == "__main__":
    main()
