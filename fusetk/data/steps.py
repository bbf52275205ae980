"""The steps that a line goes through before it is split into subwords."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusetk.data.config import Deduplicate, Filter, Lowercase, NormalizePunctuation, Step, Tokenize, Truecase
from fusetk.errors import ConfigError

Change = Callable[[str], str]


def change_of(step: Step, language: str, truecaser: Change | None) -> Change | None:
    """What a step does to a line of one side; None for steps over pairs. Raises ConfigError for a truecaser not yet learned."""
    if isinstance(step, Filter | Deduplicate):
        return None
    if isinstance(step, NormalizePunctuation):
        from fusetk.data.normalize import Normalizer  # sacremoses takes a while to import

        return Normalizer(language)
    if isinstance(step, Tokenize):
        from fusetk.data.tokenize import Tokenizer

        return Tokenizer(language, step.escape, step.aggressive_hyphens)
    if isinstance(step, Lowercase):
        return str.lower
    if isinstance(step, Truecase):
        if truecaser is None:
            raise ConfigError(f"the truecaser of {language} is not there")
        return truecaser
    return nfc


def nfc(line: str) -> str:
    """Unicode normal form C."""
    return unicodedata.normalize("NFC", line)


def concerns(step: Step, side: str) -> bool:
    """Whether a step works on the side, "source" or "target"."""
    return getattr(step, "side", "both") in ("both", side)


def changes(steps: Sequence[Step], side: str, language: str, truecaser: Change | None) -> list[Change]:
    """What the steps do to a line of one side, in their order."""
    found = [change_of(step, language, truecaser) for step in steps if concerns(step, side)]
    return [change for change in found if change is not None]


def one_space(line: str) -> str:
    """Words separated by one ASCII space; no other character counts as white space."""
    return " ".join(word for word in line.split(" ") if word) if "  " in line or line[:1] == " " or line[-1:] == " " else line


def settings(step: Step) -> Mapping[str, Any]:
    """A step as plain values."""
    return step.model_dump(mode="json")
