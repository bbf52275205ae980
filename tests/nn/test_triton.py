"""The kernels for CUDA, run by Triton's interpreter where there is no GPU: they are the plain recurrence too.

Triton need not stand beside torch: ``pip install --no-deps --target DIR triton``, and DIR in PYTHONPATH.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CODE = """
import torch
from fusetk.nn import recurrence
from fusetk.nn.fused import cpu, gpu
from tests.nn.test_recurrence import Case, close

cpu.Kernels, usable = gpu.Kernels, recurrence.fused.usable
for kind in ("gru", "lau", "l-gru"):
    for shape in ("two directions", "attention to two sources"):
        for norm, rate, dtype in ((True, 0.3, torch.float32), (False, 0.0, torch.float32), (True, 0.0, torch.bfloat16)):
            tolerance = 3e-6 if dtype == torch.float32 else 3e-2
            case = Case(kind, 1 + (shape == "two directions"), norm, "attention" in shape, 1 + ("sources" in shape))
            recurrence.fused.usable = lambda *_: True
            found, grads = case.run(rate, dtype)
            recurrence.fused.usable = lambda *_: False
            wanted, theirs = case.run(rate, dtype)
            assert len(grads) == len(theirs) == len(case.leaves)
            for a, b in zip([*found.states, *grads], [*wanted.states, *theirs], strict=True):
                close(a, b, tolerance)
            if found.weights is not None:
                close(found.weights, wanted.weights, tolerance)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted() -> None:
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
from fusetk.nn.fused import programs

POINTERS = {
    "words": "*i16", "mask": "*u8", "starts": "*i64", "sizes": "*i64",
    **{name: "*fp32" for name in (
        "h", "out", "bias", "linear_bias", "gain", "shift", "state", "extra", "norms", "vector", "weights", "scores", "grads", "by_keys",
        "by_vector",
    )},
}
MIXED = {  # what has the type of products
    "x", "a", "after", "product", "by_x", "by_a", "queries", "keys", "values", "found", "by_queries", "by_values"
}
CONSTANTS = {
    "KIND": range(4), "NORM": (False, True), "DROP": (False, True), "EXTRA": (False, True), "EPSILON": (1e-6,), "BLOCK": (256,),
    "SOURCES": (1, 3), "HEADS": (8,), "SIZE": (32,), "VALUE_SIZE": (48,), "VALUE_BLOCK": (64,),
}
count, of = 0, {name: found for name, found in vars(programs).items() if isinstance(found, triton.JITFunction) and name[0] != "_"}
for program, kernel in of.items():
    wanted = [p.name for p in kernel.params if p.is_constexpr]
    for values in itertools.product(*(CONSTANTS[name] for name in wanted)):
        for product in ("fp32", "bf16"):
            types = {}
            for name in kernel.arg_names:
                pointer = f"*{product}" if name in MIXED else POINTERS.get(name)
                types[name] = "constexpr" if name in wanted else pointer or ("fp32" if name == "keep_scale" else "i32")
            source = ASTSource(kernel, types, dict(zip(wanted, values, strict=True)))
            made = triton.compile(source, GPUTarget("cuda", 90, 32))
            assert ".target sm_90" in made.asm["ptx"] and made.asm["cubin"], (program, values)
            count += 1
print(sorted(of), count)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_compiled_for_compute_capability_9(tmp_path: Path) -> None:
    """Every program and variant, without a device."""
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
    assert done.stdout.startswith("['attend', 'attend_back', 'cell', 'cell_back', 'values_back']")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", ["gru", "lau", "l-gru"])
@pytest.mark.parametrize("attention", [False, True])
def test_on_a_gpu(kind: str, attention: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusetk.nn import recurrence
    from tests.nn.test_recurrence import Case, close

    case = Case(kind, 1 if attention else 2, attention=attention, width=256)
    wanted, theirs = case.run(0.0, torch.float32)
    case.to("cuda")
    found, grads = case.run(0.0, torch.float32)
    assert recurrence.fused.usable(case.x, case.h, case.attention)
    for a, b in zip([*found.states, *grads], [*wanted.states, *theirs], strict=True):
        close(a.cpu(), b, 1e-3)
