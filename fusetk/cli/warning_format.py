"""The form of the warnings of `logging` and `warnings` in a command: "warning: " and the text."""

import logging
import warnings
from pathlib import Path

import fusetk
from fusetk.errors import WARNING

_default_form = warnings.formatwarning


class WarningFormatter(logging.Formatter):
    """Log records as text. Those of the level WARNING begin with "warning: "."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return WARNING + text if record.levelno == logging.WARNING else text


def set_warning_form() -> None:
    """Give warnings of `logging`, and warnings of this package, the form of printed warnings."""
    if logging.lastResort:  # the handler of programs that configure no other one
        logging.lastResort.setFormatter(WarningFormatter())
    warnings.formatwarning = _format


def _format(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning of this package without its place in the code."""
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(fusetk.__path__[0]):
        return f"{WARNING}{message}\n"
    return _default_form(message, category, filename, lineno, line)
