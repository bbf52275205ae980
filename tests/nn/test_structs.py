"""Structs for calls of the compiled kernels, and the memory of the kernels."""

import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusetk.errors import FusetkError
from fusetk.nn.feedforward import FeedForward
from fusetk.nn.fused import decoding, recurrence_loop, streams
from fusetk.nn.fused.build import EFFECTS, FOLDER, library
from fusetk.nn.fused.recurrence_cpu import CellArguments
from fusetk.nn.fused.structs import INT, POINTER, computes, fill, struct
from fusetk.nn.fused.transformer import _Residual

PAIR = struct("PAIR", ("count", INT), ("x y", POINTER))


def test_members_are_set_and_tensors_become_addresses() -> None:
    x = torch.zeros(3)
    pair = fill(PAIR(y=1), count=2, x=x, y=None)
    assert (pair.count, pair.x, pair.y) == (2, x.data_ptr(), None)


def test_a_member_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="cuont"):
        fill(PAIR(), cuont=2)
    with pytest.raises(AttributeError, match="cuont"):
        PAIR().cuont = 2


def usable(x: Tensor) -> list[bool]:
    """Return whether the kernels of each kind would compute on x (3, 16)."""
    with torch.no_grad():
        return [
            computes("transformer", x),
            computes("convolution", x),
            streams.usable(x),
            decoding.usable(x),
            recurrence_loop.usable(x, x, None),
        ]


@pytest.mark.skipif(not all(map(library, EFFECTS)), reason="there is no C++ compiler")
def test_kernels_do_not_read_fake_tensors() -> None:
    assert all(usable(torch.randn(3, 16)))
    with FakeTensorMode():
        x = torch.randn(3, 16)
        assert not any(usable(x))
    assert not any(usable(x)), "outside the mode"


@pytest.mark.parametrize("trace", [torch.jit.trace, lambda f, x: make_fx(f)(x)])
def test_recorded_operations_read_their_inputs(trace) -> None:
    ffn = FeedForward(16, 32, 16).eval()
    x, y = torch.randn(2, 3, 16)
    with torch.no_grad():
        recorded = trace(ffn, x)
        torch.testing.assert_close(recorded(y), ffn(y))


NO_MEMORY = r"fusetk: there is not enough memory \(a kernel needs \d+ bytes\): end other programs\n"
CALL = "import ctypes, sys; ctypes.CDLL(sys.argv[1])[sys.argv[2]](sys.stdin.buffer.read(), 0)"


@pytest.mark.parametrize(
    ("source", "function", "arguments"),
    [
        ("recurrence", "cell", CellArguments(threads=1, width=1 << 50)),
        ("transformer", "residual", _Residual(threads=1, width=1 << 50)),
    ],
    ids=["Scratch", "Words"],
)
def test_a_kernel_without_enough_memory_ends_with_a_message(
    source: str, function: str, arguments: Any
) -> None:
    """The tensors have no rows, so a kernel that ignores the missing memory does nothing."""
    if (kernels := library(source)) is None:
        pytest.skip("there is no C++ compiler")
    words = [sys.executable, "-S", "-c", CALL, kernels._name, function]
    done = subprocess.run(words, input=bytes(arguments), capture_output=True)
    assert done.returncode == FusetkError.exit_code
    assert re.fullmatch(NO_MEMORY, done.stderr.decode())


def test_one_function_allocates_the_memory_of_the_kernels() -> None:
    sources = [path.read_text() for suffix in ("h", "cpp") for path in FOLDER.glob(f"*.{suffix}")]
    assert re.findall(r"\w*alloc\(", "".join(sources)) == ["aligned_alloc("]
