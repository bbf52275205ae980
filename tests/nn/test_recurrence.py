"""The recurrence: the fused one is the plain one, in values and gradients; sentences that are over cost and change nothing."""

import gc
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from fusetk.nn import recurrence
from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import Transition
from fusetk.nn.dropout import Dropout
from fusetk.nn.fused import build
from fusetk.nn.packing import packing
from fusetk.nn.recurrence import Across, Found, recur

LENGTHS = torch.tensor([5, 1, 7, 7, 3])
WIDTH, READ, CONTEXT, SOURCE = 16, 6, 24, 3

fused = pytest.mark.skipif(build.library() is None, reason="there is no C++ compiler")


def drawn(module: torch.nn.Module) -> Any:
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return module


class Case:
    """Transitions, attention and inputs for one run."""

    def __init__(
        self,
        kind: str,
        directions: int = 1,
        norm: bool = True,
        attention: bool = False,
        sources: int = 1,
        width: int = WIDTH,
    ):
        torch.manual_seed(0)
        self.packing = packing(LENGTHS, 8, 2)
        rows, slots = self.packing.sizes[0], len(self.packing.places)
        self.first = drawn(Transition(kind, 2, READ, width, directions, norm))  # type: ignore[arg-type]
        self.x = torch.randn(directions, slots, READ, requires_grad=True)
        self.h = torch.randn(directions, rows, width, requires_grad=True)
        self.leaves = [self.x, self.h, *self.first.parameters()]
        self.attention = drawn(AdditiveAttention(width, 4, sources)) if attention else None
        if self.attention is not None:
            self.above = drawn(Transition(kind, 1, CONTEXT, width, 1, norm))  # type: ignore[arg-type]
            self.keys = torch.randn(rows, sources * SOURCE, width, requires_grad=True)
            self.values = torch.randn(rows, sources * SOURCE, CONTEXT, requires_grad=True)
            self.mask = torch.arange(SOURCE) < torch.tensor([1, 2, 3, 3, 2, 1])[:rows, None]
            self.leaves += [
                self.keys,
                self.values,
                *self.attention.parameters(),
                *self.above.parameters(),
            ]

    def to(self, device: str) -> None:
        for leaf in self.leaves:
            leaf.data = leaf.data.to(device)
            leaf.grad = None
        if self.attention is not None:
            self.mask = self.mask.to(device)

    def run(self, rate: float, dtype: torch.dtype) -> tuple[Found, list[Tensor]]:
        """What is found, and the gradients of a random function of it."""
        torch.manual_seed(5)
        for leaf in self.leaves:
            leaf.grad = None
        with torch.autocast(self.x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            across = None
            if self.attention is not None:
                across = Across(
                    self.attention,
                    self.above,
                    self.above.input[0],
                    self.keys,
                    self.values,
                    self.mask,
                )
            found = recur(
                self.first,
                self.x @ self.first.input,
                self.h,
                self.packing.sizes,
                Dropout(rate),
                across,
                weights=True,
            )
        real = sum(self.packing.sizes)
        outputs = [
            *(state[:, :real] for state in found.states),
            *([] if found.contexts is None else [found.contexts[:real]]),
        ]
        sum(
            (output.float().cpu() * torch.randn(output.shape)).sum() for output in outputs
        ).backward()  # type: ignore[union-attr]
        return found, [leaf.grad for leaf in self.leaves if leaf.grad is not None]


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    scale = float(b.detach().abs().max()) + 1e-3
    torch.testing.assert_close(a.float() / scale, b.float() / scale, rtol=0, atol=tolerance)


@fused
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)], ids=str
)
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(
    "shape", ["one direction", "two directions", "attention", "attention to two sources"]
)
@pytest.mark.parametrize("kind", ["gru", "lau", "l-gru"])
def test_the_fused_one_is_the_plain_one(
    kind, shape, norm, rate, dtype, tolerance, monkeypatch
) -> None:
    case = Case(
        kind, 1 + (shape == "two directions"), norm, "attention" in shape, 1 + ("sources" in shape)
    )
    assert recurrence.fused.usable(case.x, case.h, case.attention)
    found, grads = case.run(rate, dtype)
    monkeypatch.setattr(recurrence.fused, "usable", lambda *_: False)
    wanted, theirs = case.run(rate, dtype)
    assert len(grads) == len(theirs) == len(case.leaves)
    for a, b in zip([*found.states, *grads], [*wanted.states, *theirs], strict=True):
        close(a, b, tolerance)
    if (
        found.contexts is not None
        and wanted.contexts is not None
        and found.weights is not None
        and wanted.weights is not None
    ):
        close(found.contexts, wanted.contexts, tolerance)
        close(found.weights, wanted.weights, tolerance)


@fused
def test_many_rows_are_shared_between_threads() -> None:
    """The same rows again and again, alone and among many, in one thread and in several."""
    torch.manual_seed(2)
    first = drawn(Transition("l-gru", 1, READ, 64))
    x, h = torch.randn(1, 2, READ), torch.randn(1, 2, 64)
    alone = recur(first, x @ first.input, h, [2], Dropout(0.0)).states
    many = recur(
        first, x.repeat(1, 300, 1) @ first.input, h.repeat(1, 300, 1), [600], Dropout(0.0)
    ).states
    for a, b in zip(alone, many, strict=True):
        close(b.view(300, 2, 64), a.expand(300, 2, 64), 3e-6)


@fused
def test_large_and_broken_numbers(monkeypatch) -> None:
    """Gates that are shut and open, tanh at its ends; NaN stays NaN."""
    case = Case("l-gru", norm=False)
    case.x.data *= 200
    case.h.data[0, 1, 2] = torch.nan
    found, _ = case.run(0.0, torch.float32)
    monkeypatch.setattr(recurrence.fused, "usable", lambda *_: False)
    wanted, _ = case.run(0.0, torch.float32)
    for a, b in zip(found.states, wanted.states, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-5, atol=1e-4)
    assert found.states[0].isnan().any()


def test_nobody_reads_past_the_end() -> None:
    """What stands behind the end of a sentence changes nothing, and rounding sizes up does not either."""
    torch.manual_seed(1)
    first, words = drawn(Transition("gru", 1, READ, WIDTH)), torch.randn(len(LENGTHS), 8, READ)
    found = []
    for multiple in (1, 4):
        for change in (0.0, 7.0):
            packed = packing(LENGTHS, 8, multiple)
            behind = torch.arange(8)[:, None] >= LENGTHS[:, None, None]
            x = packed.pack(words + change * behind)[None] @ first.input
            states = recur(
                first, x, torch.zeros(1, packed.sizes[0], WIDTH), packed.sizes, Dropout(0.0)
            ).states
            found.append(packed.unpack(states[-1][0]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_packing() -> None:
    packed = packing(LENGTHS, 8)
    assert packed.sizes == [
        5,
        4,
        4,
        3,
        3,
        2,
        2,
    ]  # alive at each step, and no step more than the longest
    ids = torch.arange(5 * 8).view(5, 8)
    assert sorted(packed.pack(ids).tolist()) == [
        int(ids[b, t]) for b in range(5) for t in range(int(LENGTHS[b]))
    ]
    back = packed.unpack(packed.pack(ids))
    mirrored = packed.unpack(packed.pack(ids)[packed.mirrored])
    for b, length in enumerate(LENGTHS.tolist()):
        assert back[b].tolist() == [
            *ids[b, :length].tolist(),
            *[int(ids[b, length - 1])] * (8 - length),
        ]
        assert mirrored[b, :length].tolist() == ids[b, :length].flip(0).tolist()


@pytest.mark.parametrize("multiple", [2, 4, 16])
def test_packing_rounded_up(multiple: int) -> None:
    packed = packing(LENGTHS, 8, multiple)
    assert [-(-least // multiple) * multiple for least in (5, 4, 4, 3, 3, 2, 2)] == packed.sizes
    assert len(packed.order) == packed.sizes[0] and len(packed.places) == len(packed.mirrored)
    assert (
        len(packed.places) % (16 * multiple) == 0
        and 0 <= len(packed.places) - sum(packed.sizes) < 16 * multiple
    )
    ids = torch.arange(5 * 8).view(5, 8)
    assert torch.equal(
        packed.unpack(packed.pack(ids)), packing(LENGTHS, 8).unpack(packing(LENGTHS, 8).pack(ids))
    )


@pytest.mark.parametrize(
    "compiler", ["", "#!/bin/sh\necho 'no such flag' >&2\nexit 1\n"], ids=["none", "broken"]
)
def test_without_a_compiler_the_plain_one_runs_and_says_so(compiler: str, tmp_path) -> None:
    if compiler:
        (tmp_path / "c++").write_text(compiler)
        (tmp_path / "c++").chmod(0o755)
    code = (
        "import torch, warnings\n"
        "from fusetk.nn.cells import Transition\nfrom fusetk.nn.dropout import Dropout\nfrom fusetk.nn.recurrence import recur\n"
        "first = Transition('gru', 0, 4, 4)\n[torch.nn.init.ones_(p) for p in first.parameters()]\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    for _ in range(2): found = recur(first, torch.ones(1, 2, 12), torch.zeros(1, 2, 4), [2], Dropout(0.0))\n"
        "assert found.states[0].isfinite().all()\n"
        "[one] = told\nprint(one.message)\n"
    )
    environment = {
        "PATH": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert ("no such flag" if compiler else "no C++ compiler") in done.stdout


@fused
def test_kernels_are_compiled_once_and_again_where_they_are_damaged(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    try:
        assert build.library() is not None
        digest, made = sorted((tmp_path / "fusetk").iterdir(), key=lambda path: path.suffix)
        whole, before = made.read_bytes(), made.stat().st_mtime_ns
        build.library.cache_clear()
        assert build.library() is not None and made.stat().st_mtime_ns == before
        for damaged in (b"", whole[:1000], b"x" + whole[1:]):
            made.unlink()  # what is loaded must not change under the process
            made.write_bytes(damaged)
            build.library.cache_clear()
            assert build.library() is not None and made.read_bytes() == whole
        assert sorted((tmp_path / "fusetk").iterdir()) == sorted([digest, made])
    finally:
        build.library.cache_clear()


@fused
@pytest.mark.parametrize("home", [None, "/proc/1"])
def test_without_a_home_they_lie_among_temporary_files(home, tmp_path, monkeypatch) -> None:
    def nowhere() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    if home is None:
        monkeypatch.setattr(build.Path, "home", nowhere)
    else:
        monkeypatch.setenv("HOME", home)
    build.library.cache_clear()
    try:
        assert build.library() is not None
        assert len(list(tmp_path.glob("fusetk-*/kernels-*.so"))) == 1
    finally:
        build.library.cache_clear()


@fused
@pytest.mark.parametrize("threads", [1, 2])
def test_threads(threads: int, monkeypatch) -> None:
    """Rows enough for several threads, each with sums of its own; the same bits each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        case = Case("l-gru", attention=True, width=512)
        found, grads = case.run(0.1, torch.float32)
        again, repeated = case.run(0.1, torch.float32)
        assert all(
            torch.equal(a, b)
            for a, b in zip([*found.states, *grads], [*again.states, *repeated], strict=True)
        )
        monkeypatch.setattr(recurrence.fused, "usable", lambda *_: False)
        wanted, theirs = case.run(0.1, torch.float32)
        for a, b in zip([*found.states, *grads], [*wanted.states, *theirs], strict=True):
            close(a, b, 1e-3)
    finally:
        torch.set_num_threads(before)


@fused
def test_long_sentences_do_not_need_a_large_stack() -> None:
    """Scores of 60,000 positions in each of 16 heads."""
    rows, slots, width, context = 2, 60_000, 16, 16
    torch.manual_seed(0)
    first, above, attention = (
        Transition("gru", 0, READ, width),
        Transition("gru", 0, context, width),
        AdditiveAttention(width, 16),
    )
    for module in (first, above, attention):
        drawn(module)
    keys, values = (
        torch.randn(rows, slots, width, requires_grad=True),
        torch.randn(rows, slots, context),
    )
    across = Across(
        attention, above, above.input[0], keys, values, torch.ones(rows, slots, dtype=torch.bool)
    )
    found = recur(
        first,
        torch.randn(1, rows, READ) @ first.input,
        torch.zeros(1, rows, width),
        [rows],
        Dropout(0.0),
        across,
    )
    found.states[-1].sum().backward()
    assert keys.grad is not None and keys.grad.isfinite().all()


def alive(kind: type) -> int:
    gc.collect()
    return sum(issubclass(type(found), kind) for found in gc.get_objects())


@fused
def test_what_is_not_gone_back_through_is_let_go() -> None:
    case = Case("l-gru", attention=True)
    before = alive(recurrence.fused.Forward)
    for _ in range(3):
        across = Across(
            case.attention, case.above, case.above.input[0], case.keys, case.values, case.mask
        )
        found = recur(
            case.first, case.x @ case.first.input, case.h, case.packing.sizes, Dropout(0.0), across
        )
        del found
    assert alive(recurrence.fused.Forward) == before
    case.run(0.0, torch.float32)
    assert alive(recurrence.fused.Forward) == before


@fused
def test_changes_between_forward_and_backward_are_noticed() -> None:
    case = Case("gru")
    for of_weights in (True, False):
        found = recur(
            case.first, case.x @ case.first.input, case.h, case.packing.sizes, Dropout(0.0)
        ).states[-1]
        with torch.no_grad():
            (case.first.cells[0].state if of_weights else found).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            found.sum().backward()


@fused
def test_a_second_backward_pass_is_refused() -> None:
    case = Case("gru")
    found = (
        recur(case.first, case.x @ case.first.input, case.h, case.packing.sizes, Dropout(0.0))
        .states[-1]
        .sum()
    )
    found.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="FUSETK_KERNELS=off"):
        found.backward()
