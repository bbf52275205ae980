"""The multiply-adds of a model's matrix products, and the rate of one large product."""

import copy
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fusetk.models.seq2seq import Seq2Seq
from fusetk.special_tokens import SPECIAL
from fusetk.training.update import autocast

# Lengths of source and target at which multiply-adds are counted. Six of them determine the
# coefficients of ``multiply_adds``, the last two check them.
LENGTHS = ((3, 4), (3, 9), (7, 4), (7, 9), (12, 5), (5, 13), (10, 11), (14, 6))
SIZES = {"cpu": (2048, 1024, 2048), "cuda": (8192, 8192, 8192)}  # of the large product
SECONDS = 0.5  # duration of the large products of a turn


def multiply_adds(model: Seq2Seq) -> NDArray[np.float64]:
    """Return the coefficients (6,) of the multiply-adds of a sentence pair in a forward pass.

    The number is a polynomial in the lengths S and T of source and target (see ``terms``): products
    with weights are linear, attention scores and contexts are quadratic. It is counted at some
    lengths on single sentences, so padding never contributes. Lookups and operations on single
    elements are not counted. The copy of the model is in float64, for which there are no fused
    kernels that the counter cannot see. Raises ValueError if the number is not a polynomial.
    """
    model = copy.deepcopy(model).cpu().double().eval()
    counts = []
    for source, target in LENGTHS:
        counter = FlopCounterMode(display=False)
        src, tgt = (torch.full((1, n), len(SPECIAL)) for n in (source, target))
        with sdpa_kernel(SDPBackend.MATH), counter:
            model.output(model(src, torch.ones_like(src, dtype=torch.bool), tgt))
        counts.append(counter.get_total_flops() / 2)
    lengths = np.array(LENGTHS, dtype=np.float64).T
    coefficients = np.linalg.lstsq(terms(*lengths), np.array(counts), rcond=None)[0]
    if not np.allclose(terms(*lengths) @ coefficients, counts, rtol=1e-6):
        raise ValueError("the multiply-adds of the model are not a polynomial in the lengths")
    return coefficients


def terms(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the terms 1, S, T, S T, S^2, T^2 (n, 6) of n pairs of lengths."""
    ones = np.ones_like(source)
    return np.stack([ones, source, target, source * target, source**2, target**2], axis=-1)


def product_rates(
    device: torch.device, precision: str, clock: Callable[[], float] = time.perf_counter
) -> Iterator[float]:
    """Yield the multiply-adds a second of one large product; the first value is warm-up."""
    rows, inner, columns = SIZES[device.type]
    a, b = torch.ones(rows, inner, device=device), torch.ones(inner, columns, device=device)
    with autocast(device, precision):
        a, b = a.to(dtype := (a @ b).dtype), b.to(dtype)

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    while True:
        start = clock()
        products = 0
        while products == 0 or clock() - start < SECONDS:
            a @ b
            products += 1
            finish()
        yield products * rows * inner * columns / (clock() - start)
