"""The computations of a Transformer in inference: calls of ``decoding.cpp``.

These are products, attention, norms, the choice of tokens, and a whole decoder layer. All tensors
are float32 on CPU, except blocked matrices and the stored keys and values of the source.
``add_norm`` and the attention add the bias of the product before them.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusetk.nn.fused.build import library
from fusetk.nn.fused.structs import FLOAT, INT, LANES, POINTER, address, struct, transformed
from fusetk.nn.precision import product_dtype

# The constants of blocked_products.h and int8.h with these names
BLOCK = 32  # outputs that are computed together, and the multiple of their number
STEP = 32  # multiple of the width of blocked matrices, except those of float32
BLOCK_ROWS = 32  # rows that are computed together
INPUT_OFFSET = 127  # is added to the inputs of products of int8


def usable(x: Tensor) -> bool:
    """Whether the kernels can compute with ``x``: in inference, float32, on CPU.

    They compute no derivatives. They are not used if the operations on ``x`` are ``transformed``.
    """
    return (
        x.device.type == "cpu"
        and product_dtype(x) == torch.float32
        and not torch.is_grad_enabled()
        and not transformed(x)
        and library("decoding") is not None
    )


def _call(function: str, *arguments: Tensor | int | float | None) -> None:
    """Call a function of ``decoding.cpp`` with the number of threads and ``arguments``.

    Vectors may have any stride, for example the parameters of a norm.
    """
    kernels = library("decoding")
    assert kernels is not None
    converted: list[Any] = [INT(torch.get_num_threads())]
    copies = []  # kept until the kernel has returned
    for argument in arguments:
        if isinstance(argument, Tensor):
            if argument.dim() == 1 and not argument.is_contiguous():
                argument = argument.contiguous()
                copies.append(argument)
            converted.append(POINTER(argument.data_ptr()))
        elif isinstance(argument, float):
            converted.append(FLOAT(argument))
        elif argument is None:
            converted.append(POINTER(None))
        else:
            converted.append(INT(argument))
    getattr(kernels, function)(*converted)


def add_norm(x: Tensor, y: Tensor | None, bias: Tensor | None, norm: nn.LayerNorm | None) -> Tensor:
    """Return LayerNorm(x + y + bias) for x and y (R, D) and bias (D,); None skips a part."""
    rows, width = x.shape
    out = torch.empty_like(x)
    if norm is None:
        _call("add_norm", rows, width, x, y, bias, None, None, 0.0, out, None)
    else:
        parameters = norm.weight, norm.bias, norm.eps
        _call("add_norm", rows, width, x, y, bias, *parameters, None, out)
    return out


def add_bias(x: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Add ``bias`` (D,) to x (R, D) in place, then apply ReLU if ``relu``; return x."""
    _call("add_bias", *x.shape, x, bias, int(relu))
    return x


def attend_history(
    steps: Sequence[Tensor], ancestors: Tensor, heads: int, bias: Tensor | None
) -> Tensor:
    """Return the attention (R, D) of R hypotheses to their T tokens.

    ``steps`` has the projections (R_t, 3D) of each step: queries, keys and values without ``bias``
    (3D,). The token of hypothesis r at step t is row ``ancestors[r, t]`` of ``steps[t]``.
    ``ancestors`` is (R, T). The last step is the current one, whose row r is hypothesis r.
    """
    rows, length = ancestors.shape
    width = steps[-1].shape[1] // 3
    out = steps[-1].new_empty(rows, width)
    addresses = torch.tensor([step.data_ptr() for step in steps])
    _call(
        "attend_history", rows, heads, width, length, steps[-1],
        addresses, ancestors.contiguous(), bias, out,
    )  # fmt: skip
    return out


_Source = struct(
    "_Source",
    ("bytes count length", INT),
    ("lengths keys_values value_bias", POINTER),
)


class SourceKeysValues(NamedTuple):
    """Keys and values of n sources of B sentences, as ``attend_source`` reads them."""

    keys_values: Tensor  # (B, n, numbers of a block), float32 or bf16; see Source in decoding.cpp
    value_bias: Tensor | None  # (D,), if it is not in the values
    lengths: Tensor  # (B,) real positions
    heads: int
    length: int  # S

    @classmethod
    def empty(
        cls,
        sources: int,
        length: int,
        width: int,
        heads: int,
        lengths: Tensor,
        value_bias: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "SourceKeysValues":
        """Return memory that ``store`` fills, for n sources of B sentences of at most S tokens."""
        block = width * (-(-length // LANES) * LANES + length)  # block_size in decoding.cpp
        stored = torch.empty(len(lengths), sources, block, dtype=dtype)
        if value_bias is not None:
            value_bias = value_bias.contiguous()
        return cls(stored, value_bias, lengths, heads, length)

    def store(
        self, keys: Tensor, values: Tensor, first_rows: Tensor, source: int = 0, sentence: int = 0
    ) -> None:
        """Store the keys and values of source number ``source`` for b sentences.

        ``sentence`` is the number of the first one. Keys and values are rows (N, D), views of one
        tensor. ``first_rows`` (b,) has the row of the first token of each sentence.
        """
        described = self.struct()
        _call(
            "store_source", len(first_rows), self.heads, keys.shape[1],
            ctypes.addressof(described), source, sentence, keys, values, keys.stride(0),
            first_rows,
        )  # fmt: skip

    def struct(self) -> ctypes.Structure:
        """Return the C struct. It does not keep the tensors."""
        stored = self.keys_values
        pointers = map(address, (self.lengths, stored, self.value_bias))
        return _Source(stored.element_size(), stored.shape[1], self.length, *pointers)


def attend_source(
    queries: Tensor,
    bias: Tensor | None,
    source: SourceKeysValues,
    sentences: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the attention (R, D) of queries (R, D) to n sources.

    The results of the n sources are summed and multiplied by n^-1/2. The queries do not include
    ``bias`` (D,). ``sentences`` (R,) are the sentences that the queries read. ``weights``
    (R, n, H, S) is filled with the attention weights.
    """
    rows, width = queries.shape
    out = queries.new_empty(rows, width)
    described = source.struct()
    _call(
        "attend_source", rows, source.heads, width, ctypes.addressof(described), sentences,
        queries, queries.stride(0), bias, out, weights,
    )  # fmt: skip
    return out


def attend_mixed(
    steps: Sequence[Tensor],
    ancestors: Tensor,
    source: SourceKeysValues,
    sentences: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the attention (R, D) of R hypotheses to source and target, in one softmax.

    ``steps`` has the projections (R_t, 3D) of each step, here with their bias; see
    ``attend_history``. ``source`` has one source for each sentence, whose values include their
    bias. ``sentences`` (R,) are the sentences that the hypotheses read. ``weights`` (R, H, S + T)
    is filled with the attention weights.
    """
    rows, length = ancestors.shape
    width = steps[-1].shape[1] // 3
    assert source.keys_values.shape[1] == 1 and source.value_bias is None
    out = steps[-1].new_empty(rows, width)
    addresses = torch.tensor([step.data_ptr() for step in steps])
    described = source.struct()
    _call(
        "attend_mixed", rows, source.heads, width, ctypes.addressof(described), sentences, length,
        steps[-1], addresses, ancestors.contiguous(), out, weights,
    )  # fmt: skip
    return out


def best_tokens(
    logits: Tensor,
    bias: Tensor | None,
    forbidden: Tensor,
    only: Tensor | None,
    count: int,
    scales: tuple[Tensor, Tensor] | tuple[None, None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ``count`` best logits (R, n), their tokens (R, n), and log_z (R, 1).

    ``logits`` (R, V) come without ``bias`` (V,). ``forbidden`` tokens are never among the best.
    ``only`` (R,) is the only allowed token of each row, or -1. Missing tokens have the logit -inf.
    Of equal logits, the lower token comes first. log_z is the logarithm of the sum of the
    exponentials of all V logits. With ``scales`` of rows (R,) and columns (V,), the logits are
    int32. The scales multiply them, and the products replace them in memory.
    """
    logits = logits.contiguous()
    rows, size = logits.shape
    results = _empty_results(rows, count)
    _call(
        "best_tokens", rows, size, logits, *scales, bias, len(forbidden), forbidden, only, count,
        *results,
    )  # fmt: skip
    return results


NAMES = {torch.float32: "float32", torch.bfloat16: "bf16", torch.int8: "int8"}


@cache
def has_products(dtype: torch.dtype) -> bool:
    """Whether the kernels have products of this type for this processor."""
    kernels = library("decoding")
    return kernels is not None and hasattr(kernels, f"{NAMES[dtype]}_product")


@cache
def sums_have_16_bits() -> bool:
    """Whether products of int8 have sums of 16 bits, and so need smaller weights; see int8.h."""
    kernels = library("decoding")
    return has_products(torch.int8) and kernels is not None and kernels.int8_lines() > 1


class BlockedMatrix(NamedTuple):
    """A matrix W (V, D) of float32, bf16 or int8 in the order of ``product``."""

    matrix: Tensor  # (V, D), rounded up to multiples of ``BLOCK`` and, except for float32, ``STEP``
    size: int  # V
    width: int  # D
    # int8 W is multiplied by the scales (V,). The corrections (V,) are ``INPUT_OFFSET`` times the
    # sums of the rows. Both have the rounded V.
    scale: Tensor | None = None
    correction: Tensor | None = None

    def part(self, start: int, stop: int) -> "BlockedMatrix":
        """Return the outputs from ``start``, a multiple of ``BLOCK``, to ``stop``."""
        scale = None if self.scale is None else self.scale[start:]
        correction = None if self.correction is None else self.correction[start:]
        return BlockedMatrix(self.matrix[start:], stop - start, self.width, scale, correction)


def to_blocks(weight: Tensor, scale: Tensor | None = None) -> BlockedMatrix:
    """Return W (V, D) as ``BlockedMatrix``; int8 has the scales (V,) of its outputs."""
    size, width = weight.shape
    rows = -(-size // BLOCK) * BLOCK
    stored_width = width if weight.dtype == torch.float32 else -(-width // STEP) * STEP
    matrix = weight.new_zeros(rows, stored_width)
    _call(f"to_blocks_{NAMES[weight.dtype]}", size, width, weight.contiguous(), matrix)
    if scale is None:
        return BlockedMatrix(matrix, size, width)
    correction = INPUT_OFFSET * weight.sum(1, dtype=torch.int32)
    return BlockedMatrix(
        matrix, size, width, F.pad(scale, (0, rows - size)), F.pad(correction, (0, rows - size))
    )


def from_blocks(blocked: BlockedMatrix) -> Tensor:
    """Return a copy of the matrix (V, D) of ``blocked``."""
    matrix = blocked.matrix
    inputs = 4 // matrix.element_size()  # in a line of 4 bytes for each output
    shape = len(matrix) // LANES, matrix.shape[1] // inputs, LANES, inputs
    groups = matrix.view(shape).transpose(1, 2)
    return groups.reshape(matrix.shape)[: blocked.size, : blocked.width].contiguous()


def product(
    x: Tensor,
    blocked: BlockedMatrix,
    bias: Tensor | None = None,
    relu: bool = False,
    tiles: bool = True,
) -> Tensor:
    """Return x W^T + ``bias`` (R, V), float32, for x (R, D), which is rounded to the type of W.

    If W is int8, each row of x has a scale of its own. With ``relu``, negative results become
    0. A row of the result does not depend on the other rows. Without ``tiles``, vectors compute
    products of bf16 also on processors with AMX.
    """
    rows, width = x.shape
    matrix, size, map_width, scale, correction = blocked
    assert width == map_width
    out = torch.empty(rows, size, dtype=torch.float32)
    _call(
        f"{NAMES[matrix.dtype]}_product", rows, size, width, x.contiguous(), matrix,
        scale, correction, bias, int(relu), int(tiles), out,
    )  # fmt: skip
    return out


def best_tokens_of_map(
    x: Tensor,
    blocked: BlockedMatrix,
    bias: Tensor | None,
    forbidden: Tensor,
    only: Tensor | None,
    count: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``best_tokens`` of the logits ``product(x, blocked, bias)`` for x (R, D)."""
    rows, width = x.shape
    if rows < BLOCK_ROWS * torch.get_num_threads():  # the threads share the products of all rows
        return best_tokens(product(x, blocked, bias), None, forbidden, only, count)
    matrix, size, map_width, scale, correction = blocked
    assert width == map_width
    results = _empty_results(rows, count)
    _call(
        f"best_tokens_of_{NAMES[matrix.dtype]}", rows, size, width, x.contiguous(), matrix,
        scale, correction, bias, len(forbidden), forbidden,
        only, count, *results,
    )  # fmt: skip
    return results


class Screen(NamedTuple):
    """W (V, D) rounded to int8, and the bounds of its products; see Screen in best_tokens.h."""

    blocked: BlockedMatrix
    error: float  # the largest norm of a row of W minus the rounded W
    norm: float  # the largest norm of a row of W
    bias: float  # the largest absolute value of the bias


def screened_best(
    x: Tensor,
    blocked: BlockedMatrix,
    bias: Tensor | None,
    screen: Screen,
    forbidden: Tensor,
    only: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return scores (R, 1), and the best tokens (R, 1) that ``best_tokens_of_map`` finds.

    A score is 0, NaN if the row of x (R, D) or its logits have NaN, or -inf if no token is allowed.
    The product with ``screen`` excludes the tokens that cannot be the best one. Exact logits decide
    between the others. W is of float32 or bf16. With tiles, ``best_tokens_of_map`` may find another
    token of bf16 W if two logits are equal up to rounding.
    """
    rows, width = x.shape
    matrix, size, map_width, _, _ = blocked
    assert width == map_width
    score, token, _ = _empty_results(rows, 1)
    _call(
        f"screened_best_of_{NAMES[matrix.dtype]}", rows, size, width, x.contiguous(), matrix, bias,
        screen.blocked.matrix, screen.blocked.scale, screen.blocked.correction, screen.error,
        screen.norm, screen.bias, len(forbidden), forbidden, only, score, token,
    )  # fmt: skip
    return score, token


def _empty_results(rows: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    token = torch.empty(rows, count, dtype=torch.int64)
    score = torch.empty(rows, count, dtype=torch.float32)
    return score, token, torch.empty(rows, 1, dtype=torch.float32)


# A decoder layer ----------------------------------------------------------------------------------

# The structs have the same members in the same order as in decoding.cpp.
_Map = struct("_Map", ("bytes size width", INT), ("matrix scale correction bias", POINTER))
_Norm = struct("_Norm", ("gain shift", POINTER), ("eps", FLOAT))
_Layer = struct(
    "_Layer",
    ("width heads hidden_size pre mixed", INT),
    ("project self_out query cross_out hidden ffn_out", _Map),
    ("norms", _Norm * 3),
)


class BlockedMap(NamedTuple):
    """A linear map with a blocked matrix (V, D) and a bias (V,)."""

    blocked: BlockedMatrix
    bias: Tensor | None

    def struct(self) -> ctypes.Structure:
        matrix, size, width, scale, correction = self.blocked
        pointers = map(address, (matrix, scale, correction, self.bias))
        return _Map(matrix.element_size(), size, width, *pointers)


def _contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


class DecoderLayerMaps(NamedTuple):
    """The maps of a decoder layer, by their names in ``_Layer``.

    Those of attention to the source are None if self-attention is ``attend_mixed``.
    """

    project: BlockedMap
    """Queries, keys and values of self-attention."""
    self_out: BlockedMap
    query: BlockedMap | None
    """Queries of attention to the source."""
    cross_out: BlockedMap | None
    hidden: BlockedMap
    """Hidden units of the feed-forward network."""
    ffn_out: BlockedMap


class DecoderLayerArguments:
    """The data of a Transformer's decoder layer with ReLU, as ``run_decoder_layer`` reads it."""

    def __init__(
        self,
        maps: DecoderLayerMaps,
        norms: Sequence[nn.LayerNorm | None],
        heads: int,
        pre: bool,
    ):
        """``norms`` are those of self-attention, attention to the source, and the feed-forward
        network. They precede the sub-layers if ``pre``, or else follow them. The norm of attention
        to the source is None if self-attention is ``attend_mixed``.
        """
        # The struct has the addresses of these tensors.
        vectors = [[] if n is None else _contiguous(n.weight, n.bias) for n in norms]
        self._tensors = maps, vectors
        structs = {
            name: linear.struct() for name, linear in maps._asdict().items() if linear is not None
        }
        layer_norms = [
            _Norm() if n is None else _Norm(*map(address, pair), n.eps)
            for n, pair in zip(norms, vectors, strict=True)
        ]
        self.struct = _Layer(
            width=maps.project.blocked.width,
            heads=heads,
            hidden_size=maps.hidden.blocked.size,
            pre=pre,
            mixed=maps.query is None,
            norms=(_Norm * 3)(*layer_norms),
            **structs,
        )


def run_decoder_layer(
    layer: DecoderLayerArguments,
    x: Tensor,
    steps: Sequence[Tensor],
    ancestors: Tensor,
    source: SourceKeysValues,
    sentences: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute a layer for one token of each of R hypotheses, x (R, D).

    Return the output (R, D) and the projections (R, 3D) of this step. The results are those of the
    functions for the parts of the layer. ``steps`` are the projections of the earlier steps; for
    the other arguments see ``attend_history`` and ``attend_source``.
    """
    rows, width = x.shape
    projections = x.new_empty(rows, 3 * width)
    out = torch.empty_like(x)
    addresses = torch.tensor([step.data_ptr() for step in (*steps, projections)])
    described = source.struct()
    _call(
        "decoder_layer", rows, ctypes.addressof(layer.struct), x, len(addresses), addresses,
        ancestors.contiguous(), ctypes.addressof(described), sentences, out,
    )  # fmt: skip
    return out, projections


# Rounding for the products of 8 bits of PyTorch ---------------------------------------------------


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``fusetk.nn.int8.quantize`` of x (R, D)."""
    rounded = torch.empty(x.shape, dtype=torch.int8)
    scale = x.new_empty(len(x))
    _call("quantize", *x.shape, x, rounded, scale)
    return rounded, scale


def rescale(
    sums: Tensor, row_scale: Tensor, column_scale: Tensor, bias: Tensor | None, relu: bool
) -> Tensor:
    """Return ``sums`` (R, D) times the scales (R,) and (D,), plus ``bias`` (D,), float32.

    With ``relu``, negative results become 0. If ``sums`` is int32, its memory becomes the result.
    """
    sums = sums.to(torch.int32)
    _call("rescale", *sums.shape, sums, row_scale, column_scale, bias, int(relu))
    return sums.view(torch.float32)
