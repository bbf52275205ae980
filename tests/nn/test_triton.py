"""The kernels for CUDA, run by Triton's interpreter where there is no GPU: they are the plain recurrence too."""

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
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2], timeout=600
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


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
