"""Check that the seed determines the initial values of a model with classes outside fusetk.

It is a part of the verification before training (``fusetk.training.verify``).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from fusetk.errors import ConfigError, class_name
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.shape_check import is_outside
from fusetk.training.verify_classes import outside_errors
from fusetk.training.verify_training import attributes, equal_tensors
from fusetk.weights import saved_tensors

ADVICE = (
    "draw random numbers with torch, random or numpy.random, or with a generator that has a fixed "
    "seed, and compute other values from the config"
)


def check_construction(model: Seq2Seq, build: Callable[[], Seq2Seq]) -> None:
    """Raise ConfigError if ``build`` makes a model with other values than the new ``model``.

    ``build`` uses the seed of ``model``. The parameters, the persistent buffers, and the
    floating-point numbers in attributes of modules outside fusetk are compared. Integers, such as
    the number of a module, and buffers that checkpoints do not have may differ.
    """
    with outside_errors("the initial values of two models cannot be compared"):
        first = _initial_values(model)
        second = _initial_values(build())
        different = [n for n in first if n in second and not _equal(first[n], second[n])]
    for name in sorted(first.keys() ^ second.keys()):
        raise ConfigError(
            f"only one of two models that are built with the same seed has {name}: {ADVICE}"
        )
    for name in different:
        raise ConfigError(
            f"{name} has another value after the model is built again with the same seed: {ADVICE}"
        )


def _initial_values(model: Seq2Seq) -> dict[str, list[Any]]:
    """Return the values of a model that the seed determines, by the names that an error gives them.

    Those of modules outside fusetk precede the others, because a random structure of such a module
    changes the numbers that the other modules draw.
    """
    values: dict[str, list[Any]] = {}
    places = {module: place for place, module in model.named_modules()}
    for (module, name), parts in attributes(model).items():
        place = f" ({places[module]})" if places[module] else ""
        if numbers := [part for part in parts if _is_floating_point(part)]:
            values[f"{class_name(module)}.{name}{place}"] = numbers
    saved = saved_tensors(model)
    for module in (*filter(is_outside, places), model):
        for tensors in (module.named_parameters, module.named_buffers):
            for name, tensor in tensors(places[module]):
                if name in saved:
                    values[name] = [tensor]
    return values


def _is_floating_point(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.is_floating_point() or part.is_complex()
    return np.asarray(part).dtype.kind in "fc"


def _equal(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists have equal values; NaN equals NaN."""
    return len(first) == len(second) and all(map(_equal_leaves, first, second))


def _equal_leaves(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return equal_tensors(a, b)
    return type(a) is type(b) and np.array_equal(a, b, equal_nan=True)
