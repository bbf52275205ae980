"""The prep steps: changes of the text before it is split into subwords.

A step is one module of this package and one line of ``STEPS``. Its class is both its config and its
implementation; see ``fusetk.data.steps.base`` for the kinds of steps.
"""

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fusetk.data.steps.base import PrepStep
from fusetk.data.steps.deduplicate import Deduplicate
from fusetk.data.steps.filter import Filter
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.steps.nfc import NFC
from fusetk.data.steps.punctuation import NormalizePunctuation
from fusetk.data.steps.sentencepiece import SentencePiece
from fusetk.data.steps.tokenize import Tokenize
from fusetk.data.steps.truecase import Truecase

STEPS: tuple[type[PrepStep], ...] = (
    NFC,
    NormalizePunctuation,
    Tokenize,
    Lowercase,
    Truecase,
    SentencePiece,
    Filter,
    Deduplicate,
)


def step_type(steps: Sequence[type[PrepStep]]) -> Any:
    """Return the type of a field that holds one of these steps, chosen by its key ``step``."""
    return Annotated[functools.reduce(operator.or_, steps), Field(discriminator="step")]


if TYPE_CHECKING:
    Step = PrepStep
else:
    Step = step_type(STEPS)
