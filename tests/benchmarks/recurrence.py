"""What the recurrent models' loop gains: python tests/benchmarks/recurrence.py CONFIG [CONFIG ...] [--precision fp32 bf16].

Training speed of each config, as in training.py, with the fused loop, with the same loop by autograd alone (``unfused``), and word
by word, cell by cell, gate by gate (``plain``); ratios are to the plain one. With --gru, a bidirectional GRU without normalisation
beside torch's own (cuDNN's on a GPU), forward and backward over 240 sentences of 15 words, instead; configs are widths. With --profile,
how long an update takes in each of the three and what share of it matrix products are, by torch's profiler.
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
from fusetk.training.step import autocast
from tests.models.plain_recurrent import features

import training  # isort: skip
from turns import compare, options  # isort: skip


def loop(how: str) -> AbstractContextManager[Any]:
    """Run recurrent models this way."""
    if how == "plain":
        return mock.patch.object(Recurrent, "forward", features)
    return (
        mock.patch.object(recurrence.fused, "usable", lambda *_: False)
        if how == "unfused"
        else nullcontext()
    )


def turns(name: str, precision: str, given: argparse.Namespace) -> Iterator[float]:
    how, config = name.split(" ", 1)
    system = training.turns(config, precision, given)
    while True:
        with loop(how):
            found = next(system)
        yield found


def gru(
    name: str, precision: str, given: argparse.Namespace, sentences: int = 240, words: int = 15
) -> Iterator[float]:
    """Words a second, forward and backward."""
    who, width = name.split()
    size, device = int(width), device_of(given.device)
    x = torch.randn(words, sentences, size, device=device, requires_grad=True)
    theirs = torch.nn.GRU(size, size, bidirectional=True).to(device)
    ours = Transition("gru", 0, size, size, 2, norm=False).to(device)
    for parameter in ours.parameters():
        torch.nn.init.uniform_(parameter, -(size**-0.5), size**-0.5)
    back = torch.arange(words * sentences, device=device).view(words, sentences).flip(0).flatten()

    def run() -> torch.Tensor:
        if who == "torch":
            found: torch.Tensor = theirs(x)[0]
            return found
        read = x.flatten(0, 1)
        both = torch.stack((read, read.index_select(0, back))) @ ours.input_weight
        [states] = recurrence.run_recurrence(
            ours, both, read.new_zeros(2, sentences, size), [sentences] * words, Dropout(0.0)
        ).states
        return torch.cat((states[0], states[1].index_select(0, back)), -1)

    while True:
        begun = time.perf_counter()
        for _ in range(given.updates):
            with autocast(device, precision):
                found = run()
            found.sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        yield given.updates * words * sentences / (time.perf_counter() - begun)


PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::baddbmm")


def profile(name: str, precision: str, given: argparse.Namespace) -> None:
    """Print how long an update takes, and the share of products and of what else takes longest."""
    system = turns(name, precision, given)
    next(system)
    begun = time.perf_counter()
    with torch.profiler.profile() as found:
        next(system)
    took = time.perf_counter() - begun
    own = {event.key: event.self_cpu_time_total / 1e6 for event in found.key_averages()}
    products = sum(own.pop(key, 0.0) for key in PRODUCTS)
    others = sorted(own.items(), key=lambda item: -item[1])[:6]
    print(
        f"{name} {precision}: {1000 * took / given.updates:.0f} ms an update, products {products / took:.0%}; ",
        end="",
    )
    print(
        ", ".join(f"{key.removeprefix('aten::')} {seconds / took:.0%}" for key, seconds in others)
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--updates", type=int, default=5, help="updates a turn")
    parser.add_argument("--gru", action="store_true", help="configs are widths")
    parser.add_argument("--profile", action="store_true", help="where the time goes, on CPU")
    given = parser.parse_args()
    if given.profile:
        for config in given.configs:
            for precision in given.precision:
                for how in ("plain", "unfused", "fused"):
                    profile(f"{how} {config}", precision, given)
        return
    for config in given.configs:
        given.configs = [
            f"{who} {config}"
            for who in (("torch", "fused") if given.gru else ("plain", "unfused", "fused"))
        ]
        compare(given, gru if given.gru else turns, "words/s" if given.gru else "target tokens/s")


if __name__ == "__main__":
    main()
