"""The steps that a line goes through before it is split into subwords."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusetk.config import Config
from fusetk.data.config import (
    NFC,
    Deduplicate,
    Filter,
    Lowercase,
    NormalizePunctuation,
    Step,
    Tokenize,
    Truecase,
)
from fusetk.errors import ConfigError

Change = Callable[[str], str]


def change_of(step: Step, language: str, truecaser: Change | None) -> Change | None:
    """What a step does to a line of one side; None for steps over pairs.

    Raises ConfigError for a truecaser not yet learned, TypeError for a step without a handler.
    """
    try:
        handler = HANDLERS[type(step)]
    except KeyError:
        raise TypeError(
            f"the step {type(step).__name__} has no handler: add one to fusetk.data.steps.HANDLERS"
        ) from None
    return handler(step, language, truecaser)


def _nfc(step: NFC, language: str, truecaser: Change | None) -> Change:
    return nfc


def _normalize_punctuation(
    step: NormalizePunctuation, language: str, truecaser: Change | None
) -> Change:
    from fusetk.data.normalize import Normalizer  # sacremoses takes a while to import

    return Normalizer(language)


def _tokenize(step: Tokenize, language: str, truecaser: Change | None) -> Change:
    from fusetk.data.tokenize import Tokenizer

    return Tokenizer(language, step.escape, step.aggressive_hyphens)


def _lowercase(step: Lowercase, language: str, truecaser: Change | None) -> Change:
    return str.lower


def _truecase(step: Truecase, language: str, truecaser: Change | None) -> Change:
    if truecaser is None:
        raise ConfigError(f"the truecaser of {language} is not there")
    return truecaser


def _over_pairs(step: Filter | Deduplicate, language: str, truecaser: Change | None) -> None:
    """Steps over pairs change no line."""


# The handler of each step of the config.
HANDLERS: Mapping[type[Config], Callable[[Any, str, Change | None], Change | None]] = {
    NFC: _nfc,
    NormalizePunctuation: _normalize_punctuation,
    Tokenize: _tokenize,
    Lowercase: _lowercase,
    Truecase: _truecase,
    Filter: _over_pairs,
    Deduplicate: _over_pairs,
}


def nfc(line: str) -> str:
    """Unicode normal form C."""
    return unicodedata.normalize("NFC", line)


def concerns(step: Step, side: str) -> bool:
    """Whether a step works on the side, "source" or "target"."""
    return getattr(step, "side", "both") in ("both", side)


def changes(
    steps: Sequence[Step], side: str, language: str, truecaser: Change | None
) -> list[Change]:
    """What the steps do to a line of one side, in their order."""
    found = [change_of(step, language, truecaser) for step in steps if concerns(step, side)]
    return [change for change in found if change is not None]


def one_space(line: str) -> str:
    """Words separated by one ASCII space; no other character counts as white space."""
    return (
        " ".join(word for word in line.split(" ") if word)
        if "  " in line or line[:1] == " " or line[-1:] == " "
        else line
    )


def settings(step: Step) -> Mapping[str, Any]:
    """A step as plain values."""
    return step.model_dump(mode="json")
