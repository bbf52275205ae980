"""Errors that a user can cause. The command line prints each as one sentence."""

from collections.abc import Sequence

WARNING = "warning: "  # the start of messages that -q does not suppress

EX_IOERR = 74  # a batch system should not requeue the job, because it would fail again
EX_TEMPFAIL = 75  # a batch system may requeue the job
EX_DIVERGED = 76  # the same settings would diverge again
EXIT_INTERRUPTED = 130  # as a shell reports the end by SIGINT


def join_names(names: Sequence[str], conjunction: str = "and") -> str:
    """Return names as a phrase of a message: "a", "a and b", or "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def plural(number: int, noun: str) -> str:
    """Return ``noun`` for 1, and its regular plural for other numbers."""
    return noun if number == 1 else f"{noun}s"


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 line" or "2,000 lines"."""
    return f"{number:,} {plural(number, noun)}"


def first_names(names: Sequence[str], most: int | None = 5, separator: str = ", ") -> str:
    """Return the first ``most`` names (None: all), and the number of the others."""
    first = names[:most]
    others = len(names) - len(first)
    return separator.join(first) + (f" and {others} more" if others else "")


def one_line(error: BaseException) -> str:
    """Return the text of an error with spaces instead of line breaks."""
    return " ".join(str(error).split())


def is_own(part: object) -> bool:
    """Whether fusetk defines the class of ``part``."""
    return type(part).__module__.partition(".")[0] == "fusetk"


def class_name(part: object) -> str:
    """Return the name of the class of ``part``; outside fusetk, as a config names it: a.b:Name."""
    cls = type(part)
    return cls.__qualname__ if is_own(part) else f"{cls.__module__}:{cls.__qualname__}"


class FusetkError(Exception):
    """An error in one sentence: what is wrong, where, and what to do."""

    exit_code = 2


class ConfigError(FusetkError):
    """A config file is missing, unreadable or invalid."""


class ImportFailed(ConfigError):
    """A config names a component outside fusetk that cannot be imported."""


class DataError(FusetkError):
    """Text or prepared data cannot be used."""


class OutputDiskFull(DataError):
    """The disk has no space for an output file.

    Free some space and run the same command again.
    """

    exit_code = EX_IOERR


class CheckpointError(FusetkError):
    """A run folder or a checkpoint is missing or damaged, or does not match the model."""


class UnreadableFile(CheckpointError):
    """The system cannot read a file of a checkpoint, which may be intact."""


class Diverged(FusetkError):
    """The model returned NaN, or infinite logits, whose probabilities are NaN."""

    def __init__(self, what: str = "probabilities") -> None:
        super().__init__(
            f"the model returned NaN {what}: training has diverged; use an earlier checkpoint"
        )


class TrainingDiverged(FusetkError):
    """Training has diverged. A new run needs other settings."""

    exit_code = EX_DIVERGED


class DiskFull(CheckpointError):
    """The disk has no space for a checkpoint. The previous checkpoint is complete.

    Free some space and run the same command again: it continues from the previous checkpoint.
    """

    exit_code = EX_IOERR


class Interrupted(FusetkError):
    """A signal stopped the command. Everything up to the last update is saved."""

    exit_code = EX_TEMPFAIL


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that is not blank; its class if there is none."""
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of a device or of the host does not suffice."""
    messages = ("out of memory", "can't allocate memory", "_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in messages)
