"""Reports of updates and validations: lines and records for the log, and the progress bar."""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fusetk.data.sampler import UpdateSize
from fusetk.display import REFRESHES, Task
from fusetk.evaluation.metrics import METRICS
from fusetk.processes import World
from fusetk.runs import OTHER_PARTS
from fusetk.training.log import Log
from fusetk.training.progress import Progress
from fusetk.training.update import UpdateStats
from fusetk.training.validation_config import BLEU, perplexity

TWO_DECIMALS = {"ppl", BLEU, *METRICS}  # results of a validation; others have four decimals
MAX_UPDATES = 10_000  # in memory between two reports; each update has the norms of all parameters


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

        It is due every ``log_every`` updates. Before the first of these, it is also due after 1, 2,
        4, 8, ... updates. It is always due if ``MAX_UPDATES`` updates are in memory.

        ``updates_left`` is the number of remaining updates of the stage; infinite if it is unknown.
        """
        self._stats.append(stats)
        self._sizes.append(size)
        self._rate = rate
        number = progress.update
        is_power_of_two = number & (number - 1) == 0
        self._refresh_values()
        self.task.move(progress, updates_in_epoch, updates_left)
        is_early = number < self.log_every and is_power_of_two
        if number % self.log_every == 0 or is_early or len(self._stats) >= MAX_UPDATES:
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
        tokens = sum(size.target_tokens for size in self._sizes)
        self.task.values |= {"speed": tokens / (now - self._start), "rate": self._rate}
        if self.world.size == 1:
            self.task.values["loss"] = _sum(stats.nll for stats in self._stats) / tokens

    def _report_average(self, progress: Progress) -> None:
        tokens = sum(size.target_tokens for size in self._sizes)
        nll = _sum(stats.nll for stats in self._stats)
        smoothed = _sum(stats.smoothed for stats in self._stats)
        loss, smoothed_loss = (total / tokens for total in self.world.all_sum([nll, smoothed]))
        additional = {name: total / tokens for name, total in self._additional().items()}
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
                **additional,
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
        terms = "".join(f"{name} {_rounded(value, 4)}  " for name, value in additional.items())
        self.log.line(
            f"train  epoch {progress.epochs:.2f}  update {progress.update}  loss {loss:.4f} "
            f"(smoothed {smoothed_loss:.4f})  ppl {_rounded(perplexity(loss), 2)}  "
            f"{speed:.0f} tokens/s  "
            f"lr {self._rate:.3e}  gradient norm {math.nan if norm is None else norm:.2f}  "
            f"{terms}"
            f"{tokens / len(self._sizes):.0f} tokens in {pairs:.1f} pairs per update  "
            f"padding {padding:.1%}  memory {memory / 1e6:.0f} MB",
            shorten=True,
        )
        self.task.values = {"loss": loss, "speed": speed, "rate": self._rate}

    def _additional(self) -> dict[str, float]:
        """Return the sum of each additional loss over the updates of the report."""
        sums: dict[str, float] = {}
        # A process without a batch has none.
        for name in {name: None for stats in self._stats for name in stats.additional}:
            sums[name] = _sum(s.additional[name] for s in self._stats if name in s.additional)
        totals: dict[str, float] = {}
        for process in self.world.all_gather(sums):
            for name, value in process.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

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
            f"{name} {_rounded(value, 2 if name in TWO_DECIMALS else 4)}"
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


def _sum(values: Iterable[Tensor]) -> float:
    """Return the sum of scalars. It is computed on their device, so the host waits only once."""
    return float(torch.stack([*values]).sum())


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
