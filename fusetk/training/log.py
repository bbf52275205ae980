"""Output of a training run: log lines, ``metrics.jsonl``, a progress bar, TensorBoard files."""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import torch
from rich.console import Console
from torch import nn

from fusetk.data.sampler import UpdateSize
from fusetk.display import REFRESHES, Display, Task
from fusetk.errors import ConfigError
from fusetk.files import write_if_changed
from fusetk.processes import World
from fusetk.runs import LOG, METRICS, OTHER_PARTS, parse_metrics
from fusetk.training.progress import Progress
from fusetk.training.step import UpdateStats
from fusetk.training.validation_config import perplexity


class AppendingFile:
    """A file to which lines are appended. A write error never stops training.

    Lines that cannot be written are buffered and retried with the next line, and the first error is
    reported. ``logging.FileHandler`` drops such lines.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._buffer = b""
        self._reported = False

    def add(self, text: str) -> None:
        """Append a line, after the buffered lines."""
        self._buffer += text.encode() + b"\n"
        try:
            while self._buffer:
                written = self._file.write(self._buffer) or 0
                self._buffer = self._buffer[written:]
        except OSError as error:
            if not self._reported:
                _print_error(
                    f"{self._path} cannot be written ({error.strerror}): "
                    "training continues, and lines are kept in memory until it can be written"
                )
            self._reported = True

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


class _StandardError:
    """Standard error that raises no exceptions if it is closed, for example with its terminal."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class Log:
    """Output of training into a run folder and to standard error. Use it as a context manager."""

    def __init__(self, run: Path, quiet: bool = False, tensorboard: bool = False, update: int = 0):
        """Continue the output after ``update``. Raises ConfigError if tensorboard is missing."""
        self._text = AppendingFile(run / LOG)
        self._metrics = AppendingFile(run / METRICS)
        console = Console(file=cast(IO[str], _StandardError()), highlight=False)
        self._console = console
        self._quiet = quiet
        self._tensorboard: Any = None
        if tensorboard:  # the values of updates after ``update`` are hidden
            self._tensorboard = import_tensorboard()(
                str(run / "tensorboard"), purge_step=update + 1
            )
        self.display = Display(quiet, console)

    def __enter__(self) -> "Log":
        self.display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.display.__exit__(kind, error, trace)
        self._text.close()
        self._metrics.close()
        if self._tensorboard is not None:
            with suppress(OSError):
                self._tensorboard.close()

    def line(self, text: str, shorten: bool = False) -> None:
        """Print a line, and write it with date and time into the log file.

        With ``shorten``, a terminal shows only the fields that fit into a line. Two spaces separate
        the fields.
        """
        self._text.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")
        if self._quiet:
            return
        self.display.line_printed()
        if not self.display.is_bar:
            _print_error(text)
            return
        width = self._console.width
        while shorten and len(text) > width and "  " in text:
            text = text.rpartition("  ")[0]
        self._console.print(text, markup=False)

    def record(self, kind: str, values: dict[str, Any]) -> None:
        """Write a line of ``metrics.jsonl``; ``kind`` is train or valid.

        A number that is not finite becomes null. A value may be a mapping from names to values.
        """
        values = _finite(values)
        self._metrics.add(json.dumps({"kind": kind, **values}, allow_nan=False))
        try:
            for name, value in _flat(values):
                if self._tensorboard is not None and isinstance(value, int | float):
                    self._tensorboard.add_scalar(f"{kind}/{name}", value, values["update"])
        except OSError as error:
            self._tensorboard = None
            self.line(
                f"TensorBoard files cannot be written ({error}): training continues without them"
            )


def _finite(value: Any) -> Any:
    """Return a value with None instead of each number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings; slashes separate the names of the levels."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


class NullLog(Log):
    """Log that writes nothing. All processes except rank 0 use it."""

    def __init__(self) -> None:
        self.display = Display(disabled=True)

    def __enter__(self) -> "NullLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def line(self, text: str, shorten: bool = False) -> None:
        pass

    def record(self, kind: str, values: dict[str, Any]) -> None:
        pass


class Updates(Task):
    """The updates of a stage as a task of the display."""

    def __init__(self, progress: Progress):
        """Start after the updates of ``progress``."""
        super().__init__("", "updates")
        self.begin_stage(progress)

    def begin_stage(self, progress: Progress) -> None:
        """Start a stage, or continue it after the updates of ``progress``."""
        self.start = self.count = progress.update
        self.start_time = self.clock()
        self.epoch = math.floor(progress.epochs) + 1
        self.first = progress.update - progress.stage_update  # updates before the first one shown
        self.last: float | None = None  # the last update of the stage, if it is known
        self.total = None
        self.values: dict[str, float] = {}  # loss, tokens per second and learning rate

    def move(self, progress: Progress, updates_in_epoch: int, updates_left: float) -> None:
        """Count an update, which is the last one of ``progress``.

        ``updates_left`` is infinite if it is not known when the stage ends. The bar then shows the
        position in the epoch.
        """
        self.epoch = math.ceil(progress.epochs)
        self.first = progress.update - progress.stage_update
        if updates_left < math.inf:
            self.last = self.total = progress.update + updates_left
        else:
            self.first = progress.update - (progress.position or updates_in_epoch)
            self.total = self.first + updates_in_epoch
        self.set(progress.update)

    def bar(self) -> tuple[float, float | None]:
        total = self.total
        return self.count - self.first, None if total is None else total - self.first

    def position(self) -> str:
        last = "" if self.last is None else f" of {self.last:,.0f}"
        return f"epoch {self.epoch}  update {self.count:,.0f}{last}"

    def fields(self) -> list[str]:
        values = self.values
        texts = []
        if "loss" in values:
            texts.append(f"loss {values['loss']:.3f}")
        if "speed" in values:
            texts.append(f"{values['speed']:,.0f} tokens/s")
        if "loss" in values:
            texts.append(f"ppl {_rounded(perplexity(values['loss']), 1, ',')}")
        if "rate" in values:
            texts.append(f"lr {values['rate']:.1e}")
        return texts

    def time_left(self) -> str:
        left = super().time_left()
        return f"{left} of epoch" if left and self.last is None else left


class Reporter:
    """Reports of validations, and of updates as averages over ``log_every`` updates."""

    def __init__(
        self,
        log: Log,
        world: World,
        device: torch.device,
        log_every: int,
        parts: Mapping[nn.Parameter, tuple[str, str]],
    ):
        """``parts`` has the group and the name of the part of each parameter.

        The gradient norm of each part is recorded.
        """
        self.log = log
        self.parts = parts
        self.world = world
        self.device = device
        self.log_every = log_every
        self.task = Updates(Progress())
        self._last_values = -math.inf  # time of the last values in the display
        self.restart()

    @contextmanager
    def shown(self, progress: Progress) -> Iterator[None]:
        """Show the updates after ``progress`` on the display within this context."""
        self.task.begin_stage(progress)
        with self.log.display.show(self.task):
            yield

    def message(self, text: str) -> None:
        """Write a message of this process into the log (rank 0) or to standard error."""
        if self.world.first:
            self.log.line(text)
        else:
            print(f"{self.world}: {text}", file=sys.stderr, flush=True)

    def restart(self) -> None:
        """Start a new average, and measure its time from now."""
        self._stats: list[UpdateStats] = []
        self._sizes: list[UpdateSize] = []
        self._start = time.perf_counter()

    def update(
        self,
        progress: Progress,
        stats: UpdateStats,
        size: UpdateSize,
        rate: float,
        updates_in_epoch: int,
        updates_left: float,
    ) -> None:
        """Add an update, and report the average if it is due.

        It is due every ``log_every`` updates, and before that after 1, 2, 4, 8, ... updates.
        ``updates_left`` is the number of remaining updates of the stage; infinite if it is unknown.
        """
        self._stats.append(stats)
        self._sizes.append(size)
        self._rate = rate
        number = progress.update
        is_power_of_two = number & (number - 1) == 0
        self._refresh_values()
        self.task.move(progress, updates_in_epoch, updates_left)
        if number % self.log_every == 0 or (number < self.log_every and is_power_of_two):
            self.report(progress)

    def report(self, progress: Progress) -> None:
        """Report the average over the updates since the last report, if there are any."""
        if self._stats:
            self._report_average(progress)
            self.restart()

    def _refresh_values(self) -> None:
        """Give the display the average so far, as often as it needs it.

        With several processes, the loss is that of the last report.
        """
        now = time.perf_counter()
        display = self.log.display
        refresh = display.is_bar and now - self._last_values >= 1 / REFRESHES
        if not (refresh or display.line_due()):
            return
        self._last_values = now
        tokens = sum(stats.tokens for stats in self._stats)
        self.task.values |= {"speed": tokens / (now - self._start), "rate": self._rate}
        if self.world.size == 1:
            nll = float(torch.stack([stats.nll for stats in self._stats]).sum())
            self.task.values["loss"] = nll / tokens

    def _report_average(self, progress: Progress) -> None:
        tokens = sum(stats.tokens for stats in self._stats)
        nll = float(torch.stack([stats.nll for stats in self._stats]).sum())
        smoothed = float(torch.stack([stats.smoothed for stats in self._stats]).sum())
        loss, smoothed_loss = (total / tokens for total in self.world.all_sum([nll, smoothed]))
        norms = [stats.grad_norm for stats in self._stats if math.isfinite(stats.grad_norm)]
        norm = sum(norms) / len(norms) if norms else None
        speed = tokens / (time.perf_counter() - self._start)
        memory = peak_memory(self.device)
        pairs = sum(size.pairs for size in self._sizes) / len(self._sizes)
        padded = sum(size.padded for size in self._sizes)
        padding = 1 - sum(size.tokens for size in self._sizes) / padded
        self.log.record(
            "train",
            {
                "update": progress.update,
                "epoch": round(progress.epochs, 3),
                "loss": loss,
                "smoothed": smoothed_loss,
                "ppl": perplexity(loss),
                "lr": self._rate,
                "tokens_per_second": speed,
                "grad_norm": norm,
                "grad_norms": part_norms(self._stats, self.parts) if self.world.first else {},
                "tokens": tokens,
                "pairs_per_update": pairs,
                "padding": padding,
                "memory": memory,
                "device": device_name(self.device, self.world.size),
            },
        )
        self.log.line(
            f"train  epoch {progress.epochs:.2f}  update {progress.update}  loss {loss:.4f} "
            f"(smoothed {smoothed_loss:.4f})  ppl {_rounded(perplexity(loss), 2)}  "
            f"{speed:.0f} tokens/s  "
            f"lr {self._rate:.3e}  gradient norm {math.nan if norm is None else norm:.2f}  "
            f"{tokens / len(self._sizes):.0f} tokens in {pairs:.1f} pairs per update  "
            f"padding {padding:.1%}  memory {memory / 2**20:.0f} MB",
            shorten=True,
        )
        self.task.values = {"loss": loss, "speed": speed, "rate": self._rate}

    def validation(
        self,
        progress: Progress,
        metric: str,
        results: Mapping[str, float],
        is_best: bool,
        seconds: float,
        layer_shares: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Report the results of a validation, which took ``seconds``.

        ``progress`` includes the validation already. ``layer_shares`` (fusion -> layer -> share)
        are only recorded.
        """
        shares = {} if layer_shares is None else {"layer_shares": layer_shares}
        self.log.record(
            "valid",
            {
                "update": progress.update,
                "epoch": round(progress.epochs, 3),
                **results,
                "best": is_best,
                "seconds": seconds,
                **shares,
            },
        )
        values = "  ".join(
            f"{name} {_rounded(value, 2 if name in ('ppl', 'bleu') else 4)}"
            for name, value in results.items()
        )
        if is_best:
            verdict = "new best"
        elif progress.best is None:
            verdict = f"no best yet, stalled {progress.stalled}"
        else:
            best = f"best {progress.best:.4f} at update {progress.best_update}"
            verdict = f"{best}, stalled {progress.stalled}"
        self.log.line(
            f"valid  update {progress.update}  {values}  ({metric}: {verdict})  {seconds:.0f} s"
        )


def part_norms(
    stats: Sequence[UpdateStats], parts: Mapping[nn.Parameter, tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """Return the gradient norm of each part: group -> part -> norm before clipping.

    It is the mean over the updates that were not skipped. ``parts`` has the group and the name of
    the part of each parameter.
    """
    updates = [update for update in stats if math.isfinite(update.grad_norm)]
    if not updates:
        return {}
    values = iter(torch.cat([update.grad_norms for update in updates]).tolist())
    sums = dict.fromkeys(parts.values(), 0.0)
    for update in updates:
        squares = dict.fromkeys(sums, 0.0)
        for parameter in update.parameters:
            squares[parts[parameter]] += next(values) ** 2
        for part, square in squares.items():
            sums[part] += math.sqrt(square)
    norms: dict[str, dict[str, float]] = {}
    for (group, name), total in sums.items():
        norms.setdefault(group or OTHER_PARTS, {})[name] = total / len(updates)
    return norms


def _rounded(value: float, digits: int, separator: str = "") -> str:
    """Return a number with ``digits`` decimals, a large one with an exponent.

    ``separator`` precedes each group of three digits.
    """
    return f"{value:.3g}" if abs(value) >= 1e6 else f"{value:{separator}.{digits}f}"


def device_name(device: torch.device, processes: int) -> str:
    """Return the name of the hardware: `2 x NVIDIA H100`, or `CPU, 16 threads`."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{device.type.upper()}, {torch.get_num_threads()} threads"
    return f"{processes} x {name}" if processes > 1 else name


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of torch on a GPU, else of this process; 0 if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_after(run: Path, progress: Progress) -> None:
    """Remove damaged lines and those after ``progress`` from ``metrics.jsonl``.

    A resumed run repeats these updates. It also repeats the validation of the last update if the
    checkpoint does not have it.
    """
    path = run / METRICS
    if not path.exists():
        return
    lines = path.read_bytes().splitlines()
    records = [(line, parse_metrics(line)) for line in lines]
    remaining = [line + b"\n" for line, record in records if record and _precedes(record, progress)]
    write_if_changed(path, b"".join(remaining))


def _precedes(record: Mapping[str, Any], progress: Progress) -> bool:
    """Whether a record of ``metrics.jsonl`` is not after ``progress``."""
    repeated = record["kind"] == "valid" and not progress.validated
    return bool(record["update"] < progress.update + (not repeated))


def _print_error(text: str) -> None:
    with suppress(OSError, ValueError):  # A closed standard error does not stop training.
        print(text, file=sys.stderr, flush=True)


def import_tensorboard() -> Any:
    """Return the writer class of TensorBoard. Raises ConfigError if the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "training.tensorboard is set, but tensorboard is not installed: "
            "pip install 'fusetk[tensorboard]', or remove training.tensorboard"
        ) from None
    return SummaryWriter
