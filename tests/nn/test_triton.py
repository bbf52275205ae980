"""The kernels for CUDA against step-by-step computation; without a GPU in Triton's interpreter.

If the PyTorch build has no Triton: ``pip install --no-deps --target DIR triton``, with DIR in
PYTHONPATH.
"""

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusetk.nn import fused, recurrence
from fusetk.nn.cells import InputCell
from fusetk.nn.fused import recurrence_gpu as gpu
from fusetk.nn.fused.recurrence_buffers import ForwardBuffers
from tests.nn.test_recurrence import Case, close_all


def memory_after_weights(case: Case, dtype: torch.dtype) -> Tensor:
    """Run a case without gradients, and return the memory that follows its attention weights.

    Without gradients, the weights are those of one step only. The memory holds NaN unless a kernel
    wrote outside the weights.
    """
    memories = []
    allocate = recurrence.fused_recurrence.allocate_forward

    def allocate_with_guard(*arguments: Any) -> ForwardBuffers:
        buffers = allocate(*arguments)
        assert buffers.attention is not None
        weights = buffers.attention.weights
        rows = len(weights)
        assert rows == buffers.spec.sizes[0] < buffers.starts[-1]
        memory = weights.new_full((2 * buffers.starts[-1], *weights.shape[1:]), torch.nan)
        buffers.attention.weights = memory[:rows]
        memories.append(memory[rows:])
        return buffers

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(recurrence.fused_recurrence, "allocate_forward", allocate_with_guard)
        case.infer(dtype)
    return memories[0]


def test_programs_read_all_parameters() -> None:
    """A parameter without effect is a mistake of the program or of its caller."""
    path = Path(gpu.__file__).with_name("recurrence_programs.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    programs = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(programs) > 4
    for program in programs:
        read = {n.id for part in program.body for n in ast.walk(part) if isinstance(n, ast.Name)}
        assert not {argument.arg for argument in program.args.args} - read, program.name


def test_rows_are_in_the_dimension_of_a_grid_that_cuda_does_not_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA allows 65,535 programs in the others, and the beams of a search may have more rows."""
    case = Case("gru", directions=2)
    grids = []

    class Program:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid)
            return lambda *arguments, **options: None

    programs = SimpleNamespace(cell=Program())
    monkeypatch.setattr(fused, "recurrence_programs", programs, raising=False)
    monkeypatch.setitem(recurrence.fused_recurrence.KERNELS, "cpu", gpu.GpuKernels)
    monkeypatch.setattr(recurrence.fused_recurrence, "usable", lambda *_: True)
    with torch.inference_mode():
        case.infer(torch.float32)
    cells = len(case.first.cells)
    assert grids == [(rows, 2) for rows in case.layout.sizes for _ in range(cells)]


@pytest.mark.parametrize(
    ("capability", "dtype", "usable"),
    [
        ((6, 1), torch.float32, False),
        ((7, 0), torch.float16, True),
        ((7, 5), torch.bfloat16, False),
        ((8, 0), torch.bfloat16, True),
    ],
)
def test_gpus_that_triton_does_not_support_compute_without_kernels(
    capability: tuple[int, int], dtype: torch.dtype, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_triton_usable", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu._warn.cache_clear()
    message = "without fused kernels.*the GPU has the compute capability"
    with nullcontext() if usable else pytest.warns(UserWarning, match=message):
        assert gpu.usable(torch.empty(0, dtype=dtype), None) == usable


CODE = """
import torch
from fusetk.nn import recurrence
from fusetk.nn.fused import recurrence_gpu as gpu
from tests.nn.test_recurrence import Case, close, close_all
from tests.nn.test_triton import memory_after_weights

VARIANTS = (
    (True, 0.3, torch.float32),
    (False, 0.0, torch.float32),
    (True, 0.0, torch.bfloat16),
    (True, 0.0, torch.float16),
)
recurrence.fused_recurrence.KERNELS["cpu"] = gpu.GpuKernels
for kind in ("gru", "lau", "l-gru"):
    for shape in ("two directions", "attention to two sources"):
        for norm, rate, dtype in VARIANTS:
            tolerance = {torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
            directions, sources = 1 + (shape == "two directions"), 1 + ("sources" in shape)
            case = Case(kind, directions, norm, "attention" in shape, sources)
            recurrence.fused_recurrence.usable = lambda *_: True
            output, grads = case.run(rate, dtype)
            recurrence.fused_recurrence.usable = lambda *_: False
            expected, expected_grads = case.run(rate, dtype)
            assert len(grads) == len(expected_grads) == len(case.leaves)
            close_all([*output.states, *grads], [*expected.states, *expected_grads], tolerance)
            if output.weights is not None:
                close(output.weights, expected.weights, tolerance)
                recurrence.fused_recurrence.usable = lambda *_: True
                assert memory_after_weights(case, dtype).isnan().all()
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_programs_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


COMPILE = """
import itertools
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fusetk.nn.fused import recurrence_programs as programs

POINTERS = {
    "random_bits": "*i16", "mask": "*u8", "starts": "*i64", "sizes": "*i64",
    **{name: "*fp32" for name in (
        "h", "out", "bias", "linear_bias", "gain", "shift", "state", "output_grad", "norms",
        "vector", "weights", "scores", "grads", "by_keys", "by_vector",
    )},
}
MIXED = {  # pointers to the type of the products
    "x", "a", "after", "product", "by_x", "by_a", "queries", "keys", "values", "contexts",
    "by_queries", "by_values",
}
CONSTANTS = {
    "KIND": range(4), "NORM": (False, True), "DROP": (False, True), "OUTPUT_GRAD": (False, True),
    "EPSILON": (1e-6,), "BLOCK": (256,), "SOURCES": (1, 3), "HEADS": (8,), "SIZE": (32,),
    "VALUE_SIZE": (48,), "VALUE_BLOCK": (64,),
}
count = 0
kernels = {
    name: value for name, value in vars(programs).items()
    if isinstance(value, triton.JITFunction) and name[0] != "_"
}
for program, kernel in kernels.items():
    constants = [p.name for p in kernel.params if p.is_constexpr]
    constant = {*constants, *POINTERS, *MIXED, "width", "threshold", "keep_scale"}
    specialized = {p.name for p in kernel.params if not p.do_not_specialize}
    assert specialized <= constant, (program, specialized - constant)
    for values in itertools.product(*(CONSTANTS[name] for name in constants)):
        for product in ("fp32", "bf16", "fp16"):
            types = {}
            for name in kernel.arg_names:
                types[name] = "fp32" if name == "keep_scale" else "i32"
                if name in constants:
                    types[name] = "constexpr"
                elif name in MIXED:
                    types[name] = f"*{product}"
                elif name in POINTERS:
                    types[name] = POINTERS[name]
            source = ASTSource(kernel, types, dict(zip(constants, values, strict=True)))
            compiled = triton.compile(source, GPUTarget("cuda", 90, 32))
            assert ".target sm_90" in compiled.asm["ptx"], (program, values)
            assert compiled.asm["cubin"], (program, values)
            count += 1
print(*sorted(kernels), count)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_compiled_for_compute_capability_9(tmp_path: Path) -> None:
    """Compile every program and variant; that needs no device."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    names = "attention attention_backward cell cell_backward values_backward"
    assert done.stdout.startswith(names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", ["gru", "lau", "l-gru"])
@pytest.mark.parametrize("attention", [False, True])
def test_on_a_gpu(kind: InputCell, attention: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(kind, 1 if attention else 2, attention=attention, width=256)
    expected, expected_grads = case.run(0.0, torch.float32)
    case.to("cuda")
    output, grads = case.run(0.0, torch.float32)
    assert recurrence.fused_recurrence.usable(case.x, case.h, case.attention)
    tensors = [tensor.cpu() for tensor in (*output.states, *grads)]
    close_all(tensors, [*expected.states, *expected_grads], 1e-3)
    if attention:
        assert memory_after_weights(case, torch.float32).isnan().all()
