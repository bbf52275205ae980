"""The recurrence: fused kernels against step-by-step computation, the layout, and compilation."""

import ctypes
import gc
import hashlib
import os
import select
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusetk.files import locked_file
from fusetk.nn import recurrence
from fusetk.nn.additive import AdditiveAttention
from fusetk.nn.cells import InputCell, Transition
from fusetk.nn.dropout import Dropout
from fusetk.nn.fused import build
from fusetk.nn.fused.recurrence_buffers import ForwardBuffers
from fusetk.nn.recurrence import DecoderAttention, RecurrenceOutput, run_recurrence
from fusetk.nn.step_layout import StepLayout
from tests.helpers.threads import torch_threads

LENGTHS = torch.tensor([5, 1, 7, 7, 3])
WIDTH, READ, CONTEXT, SOURCE = 16, 6, 24, 3

fused = pytest.mark.skipif(build.library("recurrence") is None, reason="there is no C++ compiler")


def randomised(module: torch.nn.Module) -> Any:
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return module


class Case:
    """Transitions, attention and inputs of a run."""

    def __init__(
        self,
        kind: InputCell,
        directions: int = 1,
        norm: bool = True,
        attention: bool = False,
        sources: int = 1,
        width: int = WIDTH,
        linear_bias: bool = True,
    ):
        torch.manual_seed(0)
        self.layout = StepLayout.of(LENGTHS, 8, 2)
        rows, slots = self.layout.sizes[0], len(self.layout.places)
        self.first = randomised(Transition(kind, 2, READ, width, directions, norm, linear_bias))
        self.x = torch.randn(directions, slots, READ, requires_grad=True)
        self.h = torch.randn(directions, rows, width, requires_grad=True)
        self.leaves = [self.x, self.h, *self.first.parameters()]
        self.attention = randomised(AdditiveAttention(width, 4, sources)) if attention else None
        if self.attention is not None:
            self.above = randomised(Transition(kind, 1, CONTEXT, width, 1, norm, linear_bias))
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

    def run(self, rate: float, dtype: torch.dtype) -> tuple[RecurrenceOutput, list[Tensor]]:
        """Return the output and the gradients of a random function of it."""
        torch.manual_seed(5)
        for leaf in self.leaves:
            leaf.grad = None
        output = self.output(Dropout(rate), dtype, weights=True)
        count = sum(self.layout.sizes)  # slots that are computed
        tensors = [state[:, :count] for state in output.states]
        if output.contexts is not None:
            tensors.append(output.contexts[:count])
        sums = [(tensor.float().cpu() * torch.randn(tensor.shape)).sum() for tensor in tensors]
        torch.stack(sums).sum().backward()
        return output, [leaf.grad for leaf in self.leaves if leaf.grad is not None]

    def infer(self, dtype: torch.dtype) -> RecurrenceOutput:
        """Return the output without dropout and attention weights, as in validation."""
        return self.output(Dropout(0.0), dtype, weights=False)

    def output(self, dropout: Dropout, dtype: torch.dtype, weights: bool) -> RecurrenceOutput:
        mixed = dtype != torch.float32
        with torch.autocast(self.x.device.type, dtype if mixed else None, enabled=mixed):
            return run_recurrence(
                self.first,
                self.x @ self.first.input_weight,
                self.h,
                self.layout.sizes,
                dropout,
                self.decoder(),
                weights,
            )

    def decoder(self) -> DecoderAttention | None:
        if self.attention is None:
            return None
        return DecoderAttention(
            self.attention,
            self.above,
            self.above.input_weight[0],
            self.keys,
            self.values,
            self.mask,
        )


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    scale = float(b.detach().abs().max()) + 1e-3
    torch.testing.assert_close(a.float() / scale, b.float() / scale, rtol=0, atol=tolerance)


def close_all(tensors: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(tensors, expected, strict=True):
        close(a, b, tolerance)


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
def test_fused_kernels_compute_the_same_as_single_steps(
    kind, shape, norm, rate, dtype, tolerance, monkeypatch
) -> None:
    case = Case(
        kind, 1 + (shape == "two directions"), norm, "attention" in shape, 1 + ("sources" in shape)
    )
    assert recurrence.fused_recurrence.usable(case.x, case.h, case.attention)
    output, grads = case.run(rate, dtype)
    monkeypatch.setattr(recurrence.fused_recurrence, "usable", lambda *_: False)
    expected, expected_grads = case.run(rate, dtype)
    assert len(grads) == len(expected_grads) == len(case.leaves)
    close_all([*output.states, *grads], [*expected.states, *expected_grads], tolerance)
    if case.attention is not None:
        assert output.contexts is not None and expected.contexts is not None
        assert output.weights is not None and expected.weights is not None
        close(output.contexts, expected.contexts, tolerance)
        close(output.weights, expected.weights, tolerance)


@pytest.mark.parametrize("is_fused", [pytest.param(True, marks=fused), False])
@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("kind", ["lau", "l-gru"])
def test_without_a_bias_of_h_cells_compute_as_with_a_bias_of_zero(
    kind, attention, is_fused, monkeypatch
) -> None:
    with_bias = Case(kind, 1, True, attention)
    without = Case(kind, 1, True, attention, linear_bias=False)
    for plain, biased in zip(transitions(without), transitions(with_bias), strict=True):
        biased.cells[0].linear_bias.data.zero_()
        weights = biased.state_dict()
        weights.pop("cells.0.linear_bias")
        plain.load_state_dict(weights)
    for leaf, other in zip(without.leaves[:2], with_bias.leaves[:2], strict=True):
        leaf.data = other.data.clone()
    if attention:
        without.attention, without.keys, without.values = (
            with_bias.attention,
            with_bias.keys,
            with_bias.values,
        )
    if not is_fused:
        monkeypatch.setattr(recurrence.fused_recurrence, "usable", lambda *_: False)
    output, _ = without.run(0.0, torch.float32)
    grads = [without.x.grad, without.h.grad, without.first.cells[0].input.grad]
    expected, _ = with_bias.run(0.0, torch.float32)
    expected_grads = [with_bias.x.grad, with_bias.h.grad, with_bias.first.cells[0].input.grad]
    close_all([*output.states, *grads], [*expected.states, *expected_grads], 1e-6)
    assert "linear_bias" not in dict(without.first.cells[0].named_parameters())
    assert not any("linear_bias" in name for name in without.first.state_dict())


def transitions(case: Case) -> list[Transition]:
    return [case.first] if case.attention is None else [case.first, case.above]


@fused
@pytest.mark.usefixtures("two_threads")
def test_many_rows_are_shared_between_threads() -> None:
    """Equal rows give equal results and gradients, alone in one thread and among many in two."""
    torch.manual_seed(2)
    first = randomised(Transition("l-gru", 1, READ, 64))
    x, h = torch.randn(1, 2, READ), torch.randn(1, 2, 64)

    def run(copies: int) -> tuple[list[Tensor], list[Tensor]]:
        many_x = x.repeat(1, copies, 1) @ first.input_weight
        many_h = h.repeat(1, copies, 1)
        states = run_recurrence(first, many_x, many_h, [2 * copies], Dropout(0.0)).states
        mean = states[-1].sum() / copies
        return list(states), list(torch.autograd.grad(mean, list(first.parameters())))

    (alone, grads), (many, many_grads) = run(1), run(300)
    for a, b in zip(alone, many, strict=True):
        close(b.view(300, 2, 64), a.expand(300, 2, 64), 3e-6)
    close_all(many_grads, grads, 1e-5)


@fused
def test_large_and_broken_numbers(monkeypatch) -> None:
    """Saturated gates and tanh give the same numbers; NaN stays NaN."""
    case = Case("l-gru", norm=False)
    case.x.data *= 200
    case.h.data[0, 1, 2] = torch.nan
    output, _ = case.run(0.0, torch.float32)
    monkeypatch.setattr(recurrence.fused_recurrence, "usable", lambda *_: False)
    expected, _ = case.run(0.0, torch.float32)
    for a, b in zip(output.states, expected.states, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-5, atol=1e-4)
    assert output.states[0].isnan().any()


def test_padding_and_rounded_sizes_change_nothing() -> None:
    torch.manual_seed(1)
    first = randomised(Transition("gru", 1, READ, WIDTH))
    embedded = torch.randn(len(LENGTHS), 8, READ)
    padding = torch.arange(8)[:, None] >= LENGTHS[:, None, None]
    results = []
    for multiple in (1, 4):
        for change in (0.0, 7.0):
            layout = StepLayout.of(LENGTHS, 8, multiple)
            x = layout.to_slots(embedded + change * padding)[None] @ first.input_weight
            h = torch.zeros(1, layout.sizes[0], WIDTH)
            states = run_recurrence(first, x, h, layout.sizes, Dropout(0.0)).states
            results.append(layout.from_slots(states[-1][0]))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_the_step_layout() -> None:
    layout = StepLayout.of(LENGTHS, 8)
    # The unfinished sentences at each step; the last step is the end of the longest sentence.
    assert layout.sizes == [5, 4, 4, 3, 3, 2, 2]
    ids = torch.arange(5 * 8).view(5, 8)
    assert sorted(layout.to_slots(ids).tolist()) == [
        int(ids[b, t]) for b in range(5) for t in range(int(LENGTHS[b]))
    ]
    restored = layout.from_slots(layout.to_slots(ids))
    mirrored = layout.from_slots(layout.to_slots(ids)[layout.mirrored])
    for b, length in enumerate(LENGTHS.tolist()):
        padding = [int(ids[b, length - 1])] * (8 - length)
        assert restored[b].tolist() == ids[b, :length].tolist() + padding
        assert mirrored[b, :length].tolist() == ids[b, :length].flip(0).tolist()


@pytest.mark.parametrize("multiple", [2, 4, 16])
def test_the_step_layout_rounded_up(multiple: int) -> None:
    layout = StepLayout.of(LENGTHS, 8, multiple)
    assert [-(-least // multiple) * multiple for least in (5, 4, 4, 3, 3, 2, 2)] == layout.sizes
    assert len(layout.order) == layout.sizes[0] and len(layout.places) == len(layout.mirrored)
    assert len(layout.places) % (16 * multiple) == 0
    assert 0 <= len(layout.places) - sum(layout.sizes) < 16 * multiple
    ids = torch.arange(5 * 8).view(5, 8)
    exact = StepLayout.of(LENGTHS, 8)
    assert torch.equal(
        layout.from_slots(layout.to_slots(ids)), exact.from_slots(exact.to_slots(ids))
    )
    assert sorted(layout.places[layout.is_real]) == sorted(exact.places)


@pytest.fixture
def no_cached_library() -> Iterator[None]:
    """Make the test load the libraries again, and also the tests after it."""
    build.library.cache_clear()
    yield
    build.library.cache_clear()


@pytest.mark.usefixtures("no_cached_library")
@pytest.mark.parametrize(
    "compiler", ["", "#!/bin/sh\necho 'no such flag' >&2\nexit 1\n"], ids=["none", "broken"]
)
def test_without_a_compiler_single_steps_run_with_one_warning(
    compiler: str, tmp_path, monkeypatch
) -> None:
    if compiler:
        (tmp_path / "c++").write_text(compiler)
        (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path / "cache"])
    first = randomised(Transition("gru", 0, 4, 4))
    x, h = torch.ones(1, 2, 12), torch.zeros(1, 2, 4)
    with pytest.warns(UserWarning) as caught:
        for _ in range(2):
            output = run_recurrence(first, x, h, [2], Dropout(0.0))
    assert output.states[0].isfinite().all()
    [warning] = caught
    assert ("no such flag" if compiler else "no C++ compiler") in str(warning.message)


NOT_OPTIMISED = [build.LANGUAGE, "-O0", "-fPIC", "-shared"]  # compiles in less time


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_kernels_are_compiled_once_and_again_when_damaged(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "COMMON", NOT_OPTIMISED)
    (tmp_path / "fusetk" / f"{build.TEMPORARY}of-a-killed-process").mkdir(parents=True)
    assert build.library("recurrence") is not None
    checksum, kernels = sorted(
        (tmp_path / "fusetk").glob("recurrence-*"), key=lambda path: path.suffix
    )
    content, time = kernels.read_bytes(), kernels.stat().st_mtime_ns
    build.library.cache_clear()
    assert build.library("recurrence") is not None and kernels.stat().st_mtime_ns == time
    kernels.unlink()  # the process has loaded this file, so its content must not change
    kernels.write_bytes(b"x" + content[1:])
    build.library.cache_clear()
    assert build.library("recurrence") is not None and kernels.read_bytes() == content
    files = [checksum, kernels, tmp_path / "fusetk" / build.LOCK]
    assert sorted((tmp_path / "fusetk").iterdir()) == sorted(files)


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_kernels_of_a_machine_with_a_compiler_serve_one_without(tmp_path, monkeypatch) -> None:
    """Nodes of a cluster may share a cache folder, and only one of them may have a compiler."""
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path])
    monkeypatch.setattr(build, "COMMON", NOT_OPTIMISED)
    assert build.library("recurrence") is not None
    build.library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        with pytest.warns(UserWarning, match="no compiler no-such-compiler"):
            assert build.library("recurrence") is None, "CXX names another compiler"
    build.library.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda program: None)
    assert build.library("recurrence") is not None
    build.library.cache_clear()
    monkeypatch.setattr(build, "_machine", lambda: "another processor")
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        assert build.library("recurrence") is None


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_a_compiler_that_took_too_long_elsewhere_is_not_called(tmp_path, monkeypatch) -> None:
    """Another process has the lock for more than half of the longest time."""
    locked, seconds = iter([False, True]), iter([0, 50, 70])
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda seconds: None)
    monkeypatch.setattr(build, "lock", lambda file: next(locked))
    monkeypatch.setattr(build, "time", clock)
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path])
    monkeypatch.setattr(build, "_compile", None)  # a call fails
    with pytest.warns(UserWarning, match="took more than 120 seconds"):
        assert build.library("recurrence") is None
    assert not list(seconds)


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_the_wait_for_another_process_that_compiles_is_limited(tmp_path, monkeypatch) -> None:
    """A process that was stopped while it compiled keeps the lock."""
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path])
    monkeypatch.setattr(build, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(build, "_compile", None)  # a call fails
    with (
        ThreadPoolExecutor(1) as pool,
        locked_file(tmp_path / build.LOCK),
        pytest.warns(UserWarning, match="took more than 0.2 seconds"),
    ):
        assert pool.submit(build.library, "recurrence").result(30) is None


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_a_process_waits_for_another_one_that_compiles(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path])
    monkeypatch.setattr(build, "COMMON", NOT_OPTIMISED)
    called = threading.Event()
    monkeypatch.setattr(build, "_compile", lambda *_: called.set())
    monkeypatch.setattr(build.ctypes, "CDLL", lambda path: path)
    with ThreadPoolExecutor(1) as pool:
        with locked_file(tmp_path / build.LOCK):
            result = pool.submit(build.library, "recurrence")
            assert not called.wait(0.3)
            monkeypatch.setattr(build, "_is_complete", lambda path: True)
            assert result.result(30), "the other process has made it and compiles another library"
        assert not called.is_set()


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_flags_whose_library_cannot_be_loaded_are_not_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "COMMON", NOT_OPTIMISED)
    monkeypatch.setattr(build, "FLAGS", (["-DUNLOADABLE"], ["-fopenmp-simd"]))
    tried = []

    def load(path: str) -> ctypes.CDLL:
        tried.append(path)
        if len(tried) == 1:
            raise OSError("a library is missing")
        return ctypes.CDLL(path)

    monkeypatch.setattr(build, "ctypes", SimpleNamespace(CDLL=load))
    assert build.library("recurrence") is not None and len(tried) == 3


@pytest.mark.usefixtures("no_cached_library")
@fused
@pytest.mark.parametrize(
    ("failures", "expected"),
    [(1, ["FIRST", "EMPTY", "FIRST"]), (3, ["FIRST", "EMPTY", "FIRST", "SECOND"])],
)
def test_a_killed_compiler_is_called_again(tmp_path, monkeypatch, failures, expected) -> None:
    """Other flags are used only if the compiler fails again, or refuses the first flags."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "COMMON", NOT_OPTIMISED)
    monkeypatch.setattr(build, "FLAGS", (["-DFIRST"], ["-DSECOND"]))
    script, calls = tmp_path / "cxx", tmp_path / "calls"
    script.write_text(f"""#!/bin/sh
echo "$@" >> {calls}
case "$*" in
    *empty.cpp) ;;
    *) [ $(wc -l < {calls}) -gt {failures} ] || kill -9 $$ ;;
esac
exec c++ "$@"
""")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    assert build.library("recurrence") is not None
    names = {"FIRST": "-DFIRST", "SECOND": "-DSECOND"} | {"EMPTY": "empty.cpp"}
    called = [
        [name for name, part in names.items() if part in line][-1]
        for line in calls.read_text().splitlines()
    ]
    assert called == expected


@pytest.mark.usefixtures("no_cached_library")
def test_a_compiler_that_prints_nothing_is_named_with_its_status(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path])
    monkeypatch.setenv("CXX", "false")
    with pytest.warns(UserWarning, match="without compiled kernels: .*false ended with status 1$"):
        assert build.library("recurrence") is None


@pytest.mark.usefixtures("no_cached_library")
def test_an_unreadable_cxx_gives_a_warning(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path])
    monkeypatch.setenv("CXX", "g++ '-O1")
    with pytest.warns(UserWarning, match="CXX cannot be parsed .*: g\\+\\+ '-O1"):
        assert build.library("recurrence") is None


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_without_any_writable_folder_there_is_a_warning(monkeypatch) -> None:
    """Without a home folder and a folder of temporary files, no folder is known."""

    def fail(*_: object) -> Any:
        raise FileNotFoundError("no usable temporary directory")

    def fail_home() -> Any:
        raise RuntimeError("no home folder")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.tempfile, "gettempdir", fail)
    monkeypatch.setattr(build.Path, "home", fail_home)
    with pytest.warns(UserWarning, match="set XDG_CACHE_HOME to a writable one"):
        assert build.library("recurrence") is None


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_a_compiler_that_takes_too_long_is_called_once(tmp_path, monkeypatch) -> None:
    calls = []

    def run_compiler(compiler: list[str], *_: object) -> Any:
        calls.append(compiler)
        raise subprocess.TimeoutExpired(compiler, build.MAX_SECONDS)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(build, "_run_compiler", run_compiler)
    with pytest.warns(UserWarning, match="took more than 120 seconds"):
        assert build.library("recurrence") is None
    assert len(calls) == 1


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="the system has no groups of processes")
def test_the_programs_of_a_slow_compiler_are_ended(tmp_path, monkeypatch) -> None:
    """For example, g++ starts cc1plus, which does not end with it."""
    script, pipe = tmp_path / "cxx", tmp_path / "pipe"
    script.write_text(f"#!/bin/sh\nexec 3> {pipe}\necho started >&3\nsleep 60 &\nwait\n")
    script.chmod(0o755)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    started = b""
    for seconds in (0.2, 2, 20):  # a slow machine needs a longer time to start the programs
        monkeypatch.setattr(build, "MAX_SECONDS", seconds)
        with pytest.raises(subprocess.TimeoutExpired):
            build._run_compiler([str(script)], [], tmp_path / "a.cpp", tmp_path / "a.so")
        ready, _, _ = select.select([reader], [], [], 0)
        if ready and (started := os.read(reader, 100)):
            break
    assert started == b"started\n"
    ended, _, _ = select.select([reader], [], [], 3)
    assert ended, "a program that can write to the pipe continues"
    os.close(reader)


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_a_library_in_a_folder_of_another_user_is_not_loaded(tmp_path, monkeypatch) -> None:
    path = tmp_path / "planted.so"
    path.write_bytes(b"not a library")
    path.with_suffix(".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(build.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(OSError, match="belongs to another user"):
        build._is_complete(path)
    monkeypatch.setattr(build, "cache_folders", lambda: [tmp_path])
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert build.library("recurrence") is None


@pytest.mark.usefixtures("no_cached_library")
@fused
def test_a_library_in_a_later_folder_is_not_compiled_again(tmp_path, monkeypatch) -> None:
    """The first folder does not allow programs, for example."""
    folders = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(build, "cache_folders", lambda: folders)
    monkeypatch.setattr(build, "COMMON", NOT_OPTIMISED)
    load_error = build._load_error
    monkeypatch.setattr(
        build,
        "_load_error",
        lambda path: "failed to map" if folders[0] in path.parents else load_error(path),
    )
    assert build.library("recurrence") is not None
    build.library.cache_clear()
    monkeypatch.setattr(build, "_run_compiler", None)  # a call fails
    assert build.library("recurrence") is not None


@pytest.mark.usefixtures("no_cached_library")
@fused
@pytest.mark.parametrize("home", [None, "/proc/1"])
def test_without_a_home_kernels_are_temporary_files(home, tmp_path, monkeypatch) -> None:
    def fail() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(build, "COMMON", NOT_OPTIMISED)
    if home is None:
        monkeypatch.setattr(build.Path, "home", fail)
    else:
        monkeypatch.setenv("HOME", home)
    assert build.library("recurrence") is not None
    assert len(list(tmp_path.glob("fusetk-*/recurrence-*.so"))) == 1


@fused
@pytest.mark.parametrize("threads", [1, 2])
def test_each_run_with_some_threads_gives_the_same_bits(threads: int, monkeypatch) -> None:
    """The attention has enough rows and features for several threads."""
    with torch_threads(threads):
        case = Case("l-gru", attention=True, width=512)
        output, grads = case.run(0.1, torch.float32)
        second, second_grads = case.run(0.1, torch.float32)
        pairs = zip([*output.states, *grads], [*second.states, *second_grads], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        monkeypatch.setattr(recurrence.fused_recurrence, "usable", lambda *_: False)
        expected, expected_grads = case.run(0.1, torch.float32)
        close_all([*output.states, *grads], [*expected.states, *expected_grads], 1e-3)


@fused
def test_long_sentences_do_not_need_a_large_stack() -> None:
    """A sentence of 60,000 positions, with 16 heads."""
    rows, slots, width, context = 2, 60_000, 16, 16
    torch.manual_seed(0)
    first = randomised(Transition("gru", 0, READ, width))
    above = randomised(Transition("gru", 0, context, width))
    attention = randomised(AdditiveAttention(width, 16))
    keys = torch.randn(rows, slots, width, requires_grad=True)
    values = torch.randn(rows, slots, context)
    mask = torch.ones(rows, slots, dtype=torch.bool)
    decoder = DecoderAttention(attention, above, above.input_weight[0], keys, values, mask)
    x = torch.randn(1, rows, READ) @ first.input_weight
    h = torch.zeros(1, rows, width)
    output = run_recurrence(first, x, h, [rows], Dropout(0.0), decoder)
    output.states[-1].sum().backward()
    assert keys.grad is not None and keys.grad.isfinite().all()


def live_buffers() -> int:
    return sum(issubclass(type(item), ForwardBuffers) for item in gc.get_objects())


@fused
def test_buffers_are_freed_at_once() -> None:
    """With and without a backward pass, and without the garbage collector."""
    case = Case("l-gru", attention=True)
    x = case.x @ case.first.input_weight
    gc.collect()
    before = live_buffers()
    gc.disable()
    try:
        output = run_recurrence(
            case.first, x, case.h, case.layout.sizes, Dropout(0.0), case.decoder()
        )
        assert live_buffers() == before + 1
        del output
        assert live_buffers() == before
        case.run(0.0, torch.float32)
        assert live_buffers() == before
    finally:
        gc.enable()


@fused
def test_changes_between_forward_and_backward_are_noticed() -> None:
    case = Case("gru")
    for of_weights in (True, False):
        x = case.x @ case.first.input_weight
        state = run_recurrence(case.first, x, case.h, case.layout.sizes, Dropout(0.0)).states[-1]
        with torch.no_grad():
            (case.first.cells[0].state if of_weights else state).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            state.sum().backward()


@fused
def test_a_second_backward_pass_is_refused() -> None:
    case = Case("gru")
    x = case.x @ case.first.input_weight
    output = run_recurrence(case.first, x, case.h, case.layout.sizes, Dropout(0.0))
    total = output.states[-1].sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="FUSETK_KERNELS=off"):
        total.backward()


@fused
def test_functional_derivatives_do_not_use_the_kernels() -> None:
    """``torch.func`` and forward-mode derivatives wrap tensors, which kernels cannot read."""
    case = Case("gru", attention=True)

    def total(h: Tensor) -> Tensor:
        x = case.x @ case.first.input_weight
        layout, decoder = case.layout, case.decoder()
        output = run_recurrence(case.first, x, h, layout.sizes, Dropout(0.0), decoder)
        return output.states[-1][:, : sum(layout.sizes)].square().sum()

    [expected] = torch.autograd.grad(total(case.h), [case.h])
    h = case.h.detach()
    torch.testing.assert_close(torch.func.grad(total)(h), expected, rtol=1e-4, atol=1e-5)
    direction = torch.randn_like(h)
    _, change = torch.func.jvp(total, (h,), (direction,))
    torch.testing.assert_close(change, (expected * direction).sum(), rtol=1e-4, atol=1e-4)
