"""The prep steps: changes of the text before it is split into subwords.

A step is one module of this package and one line of ``STEPS``, or a class outside fusetk, named as
`package.module:Name`. The class is both the config and the implementation; see
``fusetk.data.steps.base`` for the kinds of steps.
"""

import functools
import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args

import pydantic
from pydantic import Field, SerializeAsAny, WrapValidator
from pydantic_core import PydanticCustomError

from fusetk.config import ComponentImportError, check_storable, imported
from fusetk.data.steps.base import LearnedStep, LineStep, PairStep, PrepStep, UniquePairStep
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
# Names of files of the prepared folder that a model of a step must not have.
RESERVED = {"train", "vocab", *(step.model_file for step in STEPS if issubclass(step, LearnedStep))}


def step_type(steps: Sequence[type[PrepStep]]) -> Any:
    """Return the type of a field that holds a step, chosen by its key ``step``.

    It is one of these steps, or one of a class outside fusetk.
    """
    own: Any = Annotated[functools.reduce(operator.or_, steps), Field(discriminator="step")]
    return Annotated[own, SerializeAsAny(), WrapValidator(_validated)]


def _validated(value: Any, validate_own: pydantic.ValidatorFunctionWrapHandler) -> Any:
    """Validate the config of a step; ``validate_own`` does it for the steps of fusetk."""
    name = value.get("step") if isinstance(value, dict) else None
    if not isinstance(name, str) or ":" not in name:
        return validate_own(value)
    try:
        step: type[PrepStep] = imported(name)
    except ComponentImportError as error:
        raise PydanticCustomError("import", "{error}", {"error": str(error)}) from error
    if problem := _problem(name, step):
        raise PydanticCustomError("choice", "{error}", {"error": f"{name!r} {problem}"})
    try:
        parsed = step.model_validate(value)
    except pydantic.ValidationError as error:  # `parse` combines the paths of nested errors
        details = {"errors": error.errors(), "kind": step}
        raise PydanticCustomError("nested", "invalid", details) from None
    check_storable(parsed, name)
    return parsed


def _problem(name: str, step: Any) -> str | None:
    """Return the reason why ``step``, the object with this name, cannot be a step, or None."""
    kinds = (LineStep, PairStep, UniquePairStep)
    if not (isinstance(step, type) and issubclass(step, kinds)):
        bases = ", ".join(kind.__name__ for kind in (LearnedStep, *kinds[:-1]))
        return f"is not a subclass of {bases} or {kinds[-1].__name__} in fusetk.data.steps.base"
    annotation: Any = step.model_fields["step"].annotation
    if annotation is not str and name not in get_args(annotation):
        return "must accept its name as the value of `step`: declare `step: str` in the class"
    if issubclass(step, UniquePairStep):
        reason = getattr(step, "reason", None)
        if not (isinstance(reason, str) and reason):
            return f"has reason = {reason!r}: it must be a text, the reason for dropping in reports"
    if issubclass(step, LearnedStep):
        file = getattr(step, "model_file", "")
        if not (isinstance(file, str) and re.fullmatch(r"[\w-]+", file)) or file in RESERVED:
            return (
                f"has model_file = {file!r}: it must be a name of letters, digits, _ and -, but "
                f"none of {', '.join(sorted(RESERVED))}"
            )
    return None


if TYPE_CHECKING:
    Step = PrepStep
else:
    Step = step_type(STEPS)
