"""The operations that can be computed in several ways, and the measurement of the fastest way.

The ways of an operation differ in speed and rounding only.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from fusetk.models.quantization import CONVERSIONS
from fusetk.models.transformer import Transformer, TransformerConfig
from fusetk.nn import attention
from fusetk.nn.best_tokens import best_tokens_of_output
from fusetk.nn.fused import decoding as fused_decoding
from fusetk.nn.fused import products
from fusetk.nn.inference_linear import (
    Bf16Linear,
    KernelLinear,
    kernels_are_faster,
    screens,
    uses_kernels,
)
from fusetk.nn.int8 import Int8KernelLinear, Int8Linear, ScreenedLinear
from fusetk.nn.nested import select
from fusetk.nn.output import MIN_ROWS, OutputProjection
from fusetk.nn.packed_layout import ROW_MULTIPLE
from fusetk.nn.precision import float32_by_default
from fusetk.special_tokens import UNK

Way = str | int  # a way to compute an operation, as it is stored in JSON
Undo = Callable[[], None]


class Operation(NamedTuple):
    """An operation that can be computed in several ways, which differ in speed and rounding only.

    To add an operation, add an entry to ``OPERATIONS``. Runs and caches that do not know its name
    use the default way.
    """

    name: str
    """Name in the stored files. It must never change its meaning."""
    ways: tuple[Way, ...]
    """The possible ways; the first is the default."""
    measure: Callable[[], Way]
    """Return the way to use on this machine: the default, or a faster way that is as exact."""
    use: Callable[[Way], Undo]
    """Use a way from now on; return a function that restores the previous one."""


PRODUCTS = "float32 products"  # names of operations; the first one is that of training
INFERENCE_PRODUCTS = "float32 products, inference"
LARGE_PRODUCTS = {
    torch.float32: "large float32 products, training",
    torch.bfloat16: "large bf16 products, training",
}
# PyTorch's default is replaced only if the alternative is this many times as fast.
MIN_SPEEDUP = 1.15
# The kernels for products replace PyTorch if they are faster at all. They are at least as exact as
# PyTorch with weights of the same type.
MIN_SPEEDUP_KERNELS = 1.0
# In bf16 training, the kernels are used even if they are up to 5 % slower in the measurement. A
# training has more shapes than the measurement, and oneDNN compiles a product for each shape.
MIN_SPEEDUP_BF16_TRAINING = 0.95


def fastest(
    ways: Sequence[Way],
    prepare: Callable[[Way], Callable[[], object]],
    exact: Callable[[Way], bool] = lambda way: True,
    speedup: float = MIN_SPEEDUP,
    clock: Callable[[], float] = time.perf_counter,
) -> Way:
    """Return the fastest of the exact ways.

    ``prepare`` returns a function that computes the operation in one way. Another way replaces the
    first one, the default, only if it is ``speedup`` times as fast. ``clock`` returns seconds; that
    of a thread excludes the time in which other processes run, and suits one thread only.
    """
    usable = [way for way in ways if way == ways[0] or exact(way)]
    seconds = _seconds([prepare(way) for way in usable], clock)
    best = min(range(1, len(usable)), key=seconds.__getitem__, default=0)
    return usable[best] if seconds[0] > speedup * seconds[best] else usable[0]


# Products ----------------------------------------------------------------------------------------

KERNELS = "kernels"  # a way
LIBRARIES = ("MKL", "oneDNN")  # MKL is PyTorch's default
LARGE_WAYS = ("library", KERNELS)  # for float32, the library is the chosen one of LIBRARIES
MAPS = ((768, 256), (1024, 256), (256, 1024))  # shapes of weights
PROJECTION = (5003, 256)  # the number of outputs is rarely a multiple of the width of a register
RECURRING_ROWS = 4  # numbers of rows in the measured products of a training in bf16
TOKENS = 1000  # rows of the first measured products of a training; the loss has MIN_ROWS
ROWS = 200  # the first number of rows in products of a search: a typical number of hypotheses
SOURCE_SHAPE = 40, 16  # sentences that these hypotheses translate, and tokens of each


def _use_large_products(dtype: torch.dtype, way: Way) -> Undo:
    before = products.used_in_training[dtype]
    products.used_in_training[dtype] = way == KERNELS and products.available(dtype)
    return partial(products.used_in_training.__setitem__, dtype, before)


def _measure_large_products(dtype: torch.dtype) -> Way:
    if not products.available(dtype):
        return "library"
    bf16 = dtype == torch.bfloat16
    with torch.no_grad(), one_thread():
        return fastest(
            LARGE_WAYS,
            partial(_prepare_training_products, dtype),
            speedup=MIN_SPEEDUP_BF16_TRAINING if bf16 else MIN_SPEEDUP_KERNELS,
            clock=time.thread_time,
        )


def _prepare_training_products(dtype: torch.dtype, way: Way) -> Callable[[], object]:
    """Return a function that computes the products of linear maps, forward and backward.

    Each call has another number of rows than the previous call, as batches have. oneDNN compiles a
    product for each number and keeps only the last products. In bf16, a training with the library
    rounds the numbers, and most of them recur; so they do here.
    """
    multiply = products.matmul if way == KERNELS else torch.mm
    maps = [
        (torch.ones(shape, dtype=dtype), MIN_ROWS if shape == PROJECTION else TOKENS)
        for shape in (*MAPS, PROJECTION)
    ]
    further_rows = count()

    def run() -> object:
        further = next(further_rows)
        if dtype == torch.bfloat16:
            further = further % RECURRING_ROWS * ROW_MULTIPLE
        results = []
        for weight, tokens in maps:
            x = torch.ones(tokens + further, weight.shape[1], dtype=dtype)
            y = multiply(x, weight.t())
            results.append((multiply(y, weight), multiply(y.t(), x)))
        return results

    return run


def use_precision(matmul: str) -> Undo:
    """Set PyTorch's precision of float32 products; return a function that restores it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    return partial(torch.set_float32_matmul_precision, before)


def _use_library(library: Way) -> Undo:
    """Use MKL or oneDNN for exact float32 products; return a function that restores the setting.

    With the precision "medium", PyTorch uses oneDNN for products. It is faster on processors for
    which MKL does not use the full vector width. But on a processor with bf16 tiles, oneDNN rounds
    the factors to bf16. Therefore the errors are compared.
    """
    return use_precision("medium" if library == "oneDNN" else "highest")


def _measure_products() -> Way:
    with one_thread():
        return fastest(LIBRARIES, _prepare_product, _is_exact_product, clock=time.thread_time)


def _prepare_product(library: Way) -> Callable[[], object]:
    a, b = torch.ones(1024, 256), torch.ones(256, 1024)

    def run() -> object:
        restore = _use_library(library)
        product = a @ b
        restore()
        return product

    return run


def _measure_inference_products() -> Way:
    with torch.inference_mode(), one_thread():
        return fastest(
            LIBRARIES, _prepare_inference_products, _is_exact_product, clock=time.thread_time
        )


def _prepare_inference_products(library: Way) -> Callable[[], object]:
    """Return a function that computes maps of rows, as many rows as no call before.

    The number of hypotheses in a search changes often, and oneDNN compiles a product for each.
    """
    weights = [torch.ones(shape) for shape in MAPS]
    rows = count(ROWS)

    def run() -> object:
        number = next(rows)
        restore = _use_library(library)
        results = [F.linear(torch.ones(number, weight.shape[1]), weight) for weight in weights]
        restore()
        return results

    return run


def _is_exact_product(library: Way) -> bool:
    """Whether the error of a library's float32 products is at most twice that of MKL."""
    errors = []
    for compared in ("MKL", library):
        restore = _use_library(compared)
        errors.append(product_error(torch.device("cpu")))
        restore()
    return errors[1] <= 2 * errors[0]


# Attention ---------------------------------------------------------------------------------------


def attention_name(kind: str) -> str:
    """Return the name of the operation for a key of ``ATTENTION_KINDS``."""
    return f"longest plain attention, {kind}"


def _use_attention_limit(kind: tuple[torch.dtype, bool], limit: Way) -> Undo:
    before = dict(attention.plain_up_to)

    def restore() -> None:
        attention.plain_up_to.clear()
        attention.plain_up_to.update(before)

    attention.plain_up_to[kind] = int(limit)
    return restore


def _plain_attention_limit(dtype: torch.dtype, training: bool) -> int:
    """Return the greatest of ``ATTENTION_LENGTHS`` up to which plain products are faster.

    They must be ``MIN_SPEEDUP`` times as fast as the fused kernel at this length and at all smaller
    ones. Returns 0 if they are not so fast at the smallest length.
    """
    limit = 0
    for length in ATTENTION_LENGTHS:
        prepare = partial(_prepare_attention, dtype, training, length)
        if not fastest((0, length), prepare):
            break
        limit = length
    return limit


def _prepare_attention(
    dtype: torch.dtype, training: bool, length: int, limit: Way
) -> Callable[[], object]:
    """Return a function that computes attention to ``length`` keys with ``limit`` in use.

    In training, the function also computes the backward pass.
    """
    shape = max(1, 512 // length), length, 4, 64
    q, k, v = (
        torch.ones(shape, dtype=dtype).transpose(1, 2).requires_grad_(training) for _ in range(3)
    )
    mask = torch.ones(shape[0], 1, 1, length, dtype=torch.bool)

    def run() -> object:
        restore = _use_attention_limit((dtype, training), limit)
        with torch.inference_mode(False), torch.set_grad_enabled(training):
            result = attention.scaled_dot_product(q, k, v, mask, 0.0, "")
            if training:
                torch.autograd.grad(result.sum(), (q, k, v))
        restore()
        return result

    return run


# Linear maps in inference -------------------------------------------------------------------------


def _use_kernels(dtype: torch.dtype, kind: str, way: Way) -> Undo:
    kinds = kernels_are_faster[dtype]
    before = kinds[kind]
    kinds[kind] = way == KERNELS
    return partial(kinds.__setitem__, kind, before)


def _measure_linear(dtype: torch.dtype, kind: str) -> Way:
    ways = LINEAR_WAYS[dtype, kind]
    if not fused_decoding.has_products(dtype):
        return ways[0]
    prepare = _prepare_search_step if kind == "maps" else _prepare_projection
    # In autocast, a search does not use the kernels.
    with torch.inference_mode(), one_thread(), torch.autocast("cpu", enabled=False):
        return fastest(
            ways, partial(prepare, dtype), speedup=MIN_SPEEDUP_KERNELS, clock=time.thread_time
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for operations, as a search does if there are as many batches as threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _prepare_search_step(dtype: torch.dtype, way: Way) -> Callable[[], object]:
    """Return a function that computes a decoder layer for the next token of some hypotheses.

    Each call has one more hypothesis than the previous call, because the number of hypotheses
    changes often in a search. oneDNN compiles a product for each number. The kernels compute the
    whole layer in one call of C++. This saves time outside the products, too, so the whole layer is
    measured.
    """
    ffn, width = MAPS[1]
    one_layer = {"layers": 1}
    config = TransformerConfig(width=width, ffn=ffn, heads=4, encoder=one_layer, decoder=one_layer)
    with torch.random.fork_rng(devices=[]):
        model = Transformer(config, source_size=8, target_size=8).eval()
    undo = _use_kernels(dtype, "maps", way)
    try:
        CONVERSIONS[dtype](model)
    finally:
        undo()
    source = torch.full(SOURCE_SHAPE, UNK)
    state = model.start(model.encode(source, torch.ones(SOURCE_SHAPE, dtype=torch.bool)))
    rows = count(ROWS)

    def run() -> object:
        number = next(rows)
        sentences = torch.arange(number) * SOURCE_SHAPE[0] // number
        hypotheses = select(state.per_hypothesis, sentences)
        return model.decode(torch.full((number, 1), UNK), state._replace(per_hypothesis=hypotheses))

    return run


def _prepare_maps(dtype: torch.dtype, way: Way) -> Callable[[], object]:
    """Return a function that computes maps of as many rows as in ``_prepare_search_step``."""
    maps = [(_linear(dtype, way, shape), shape[1]) for shape in MAPS]
    rows = count(ROWS)

    def run() -> object:
        number = next(rows)
        return [linear(torch.ones(number, width)) for linear, width in maps]

    return run


def slower_than_float32(dtype: torch.dtype, training: bool = False) -> bool:
    """Whether linear maps with weights of this type are slower on CPU than those of float32.

    Both types are measured with the code that this process uses for them in training or in
    inference: the kernels if ``products.used_in_training`` or ``uses_kernels`` is true for the
    type, otherwise PyTorch.
    """

    def prepare(compared: torch.dtype) -> Callable[[], object]:
        if training:
            way = KERNELS if products.used_in_training[compared] else LARGE_WAYS[0]
            return _prepare_training_products(compared, way)
        return _prepare_maps(compared, KERNELS if uses_kernels(compared, "maps") else "PyTorch")

    with torch.inference_mode(), one_thread(), float32_by_default():
        float32, other = _seconds([prepare(torch.float32), prepare(dtype)], time.thread_time)
    return other > float32


def _prepare_projection(dtype: torch.dtype, way: Way) -> Callable[[], object]:
    """Return a function that finds the best tokens of one hypothesis more in each call."""
    linear = _linear(dtype, way, PROJECTION)
    forbidden, best = torch.tensor([0, 2]), 6
    rows = count(ROWS)

    def run() -> object:
        x = torch.ones(next(rows), PROJECTION[1])
        return best_tokens_of_output(linear, x, forbidden, None, best)

    return run


def _linear(dtype: torch.dtype, way: Way, shape: tuple[int, int]) -> nn.Module:
    """Return a linear map with weights (out, width) of ones, which is computed in one way.

    The way "float32" has weights of float32, the other ways have weights of ``dtype``.
    """
    weight = torch.ones(shape)
    if way == "float32" or (way == "PyTorch" and dtype == torch.float32):
        return OutputProjection(shape[1], shape[0], bias=False, tied=weight)
    if dtype == torch.int8:
        return (Int8KernelLinear if way == KERNELS else Int8Linear)(weight, None)
    if way == KERNELS:
        return KernelLinear(weight.to(dtype), None)
    return Bf16Linear(weight, None)


SCREEN_WAYS = ("exact", "int8 first")  # the products that find the best token of a hypothesis


def _use_screen(dtype: torch.dtype, way: Way) -> Undo:
    before = screens[dtype]
    screens[dtype] = way == SCREEN_WAYS[1]
    return partial(screens.__setitem__, dtype, before)


def _measure_screen(dtype: torch.dtype) -> Way:
    if not all(map(fused_decoding.has_products, (dtype, torch.int8))):
        return SCREEN_WAYS[0]
    with torch.inference_mode(), one_thread():
        return fastest(
            SCREEN_WAYS,
            partial(_prepare_best_token, dtype),
            speedup=MIN_SPEEDUP,
            clock=time.thread_time,
        )


def _prepare_best_token(dtype: torch.dtype, way: Way) -> Callable[[], object]:
    """Return a function that finds the best token of one hypothesis more in each call.

    The features are rows of the matrix, so one logit is much higher than the others.
    """
    weight = torch.randn(PROJECTION, generator=torch.Generator().manual_seed(1))
    linear = ScreenedLinear(weight.to(dtype), None)
    forbidden = torch.tensor([0, 2])
    rows = count(ROWS)

    def run() -> object:
        x = weight[: next(rows)]
        if way == SCREEN_WAYS[0]:
            return best_tokens_of_output(linear, x, forbidden, None, 1)
        return linear.best(x, forbidden, None)

    return run


# The ways by type of the weights and kind of map, the keys of ``kernels_are_faster``.
LINEAR_WAYS: dict[tuple[torch.dtype, str], tuple[Way, ...]] = {
    (dtype, kind): ("PyTorch", KERNELS)
    for dtype, kinds in kernels_are_faster.items()
    for kind in kinds
}
LINEAR_WAYS[torch.bfloat16, "projection"] = ("float32", KERNELS)


# Operations --------------------------------------------------------------------------------------

# The keys of ``attention.plain_up_to``, by name.
ATTENTION_KINDS = {
    "fp32 training": (torch.float32, True),
    "fp32 inference": (torch.float32, False),
    "bf16 training": (torch.bfloat16, True),
    # bf16 inference is missing, because plain products round the attention scores to bf16 and the
    # fused kernel does not.
}
ATTENTION_LENGTHS = (16, 64, 256, 1024)


def _attention_operation(kind: str) -> Operation:
    key = ATTENTION_KINDS[kind]
    return Operation(
        attention_name(kind),
        (0, *ATTENTION_LENGTHS),  # number of keys up to which plain products are used
        partial(_plain_attention_limit, *key),
        partial(_use_attention_limit, key),
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(PRODUCTS, LIBRARIES, _measure_products, _use_library),
    *(
        Operation(
            name,
            LARGE_WAYS,
            partial(_measure_large_products, dtype),
            partial(_use_large_products, dtype),
        )
        for dtype, name in LARGE_PRODUCTS.items()
    ),
    *(_attention_operation(kind) for kind, (_, training) in ATTENTION_KINDS.items() if training),
    # This way is in use while the next operations are measured. They are for inference, too.
    Operation(INFERENCE_PRODUCTS, LIBRARIES, _measure_inference_products, _use_library),
    *(
        _attention_operation(kind)
        for kind, (_, training) in ATTENTION_KINDS.items()
        if not training
    ),
    *(
        Operation(
            f"{fused_decoding.NAMES[dtype]} {kind}, inference",
            ways,
            partial(_measure_linear, dtype, kind),
            partial(_use_kernels, dtype, kind),
        )
        for (dtype, kind), ways in LINEAR_WAYS.items()
    ),
    *(
        Operation(
            f"{fused_decoding.NAMES[dtype]} best token, inference",
            SCREEN_WAYS,
            partial(_measure_screen, dtype),
            partial(_use_screen, dtype),
        )
        for dtype in screens
    ),
)


# Measurements ------------------------------------------------------------------------------------


# A measurement ends when no time fell by more than the fraction MIN_CHANGE in UNCHANGED_ROUNDS
# rounds. Other processes disturb single rounds, and at first PyTorch's threads may share one core.
MIN_CHANGE, UNCHANGED_ROUNDS = 0.01, 5
MAX_SECONDS = 1.0  # the round in which a measurement reaches this time is its last
# After ROUNDS_OF_ALL rounds, a function that takes more than MAX_SLOWDOWN times as long as the
# fastest one is not run again. PyTorch's product of integers is 50 times as slow as the kernels on
# some processors.
MAX_SLOWDOWN, ROUNDS_OF_ALL = 10, 2


def measurements_hash() -> str:
    """Return a hash of this file, which contains the measurements."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _seconds(
    functions: Sequence[Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the shortest time of each function, in seconds.

    In each round, every function runs once, except those that ``MAX_SLOWDOWN`` excludes. The first
    round is not timed.
    """
    for function in functions:
        function()
    shortest = [math.inf] * len(functions)
    start = time.perf_counter()
    unchanged = rounds = 0
    while unchanged < UNCHANGED_ROUNDS:
        limit = MAX_SLOWDOWN * min(shortest) if rounds >= ROUNDS_OF_ALL else math.inf
        unchanged += 1
        rounds += 1
        for i, function in enumerate(functions):
            if shortest[i] > limit:
                continue
            before = clock()
            function()
            seconds = clock() - before
            if seconds < (1 - MIN_CHANGE) * shortest[i]:
                unchanged = 0
            shortest[i] = min(shortest[i], seconds)
        if time.perf_counter() - start > MAX_SECONDS:
            break
    return shortest


def product_error(device: torch.device) -> float:
    """Return the relative error |AB - exact| / |exact| of a float32 product.

    It is about 3e-7 for exact factors, 3e-4 for factors in tf32, and 2e-3 for factors in bf16.
    """
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(512, 512, generator=generator).to(device) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())
