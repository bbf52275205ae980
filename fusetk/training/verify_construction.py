"""Check that the seed determines the initial values of a model with classes outside fusetk.

It is a part of the verification before training (``fusetk.training.verify``).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusetk.errors import ConfigError, class_name
from fusetk.models.seq2seq import Seq2Seq
from fusetk.nn.shape_check import is_outside
from fusetk.training.verify_training import attributes


def check_construction(model: Seq2Seq, build: Callable[[], Seq2Seq]) -> None:
    """Raise ConfigError if ``build`` makes a model with other values than the new ``model``.

    ``build`` uses the seed of ``model``. The parameters, the buffers, and the numbers in attributes
    of modules outside fusetk are compared.
    """
    first = _initial_values(model)
    second = _initial_values(build())
    only_in_one = sorted(first.keys() ^ second.keys())
    for name in (*only_in_one, *first):
        if name in only_in_one or not _equal(first[name], second[name]):
            raise ConfigError(
                f"{name} differs between two constructions of the model with the same seed: draw "
                "random numbers with torch, random or numpy.random, or with a generator that has "
                "a fixed seed, and compute other values from the config"
            )


def _initial_values(model: Seq2Seq) -> dict[str, list[Any]]:
    """Return the tensors, arrays and numbers of a model by names for an error.

    Those of modules outside fusetk precede the others, because a random structure of such a module
    changes the numbers that the other modules draw.
    """
    values: dict[str, list[Any]] = {}
    places = {module: place for place, module in model.named_modules()}
    for (module, name), parts in attributes(model).items():
        place = f" ({places[module]})" if places[module] else ""
        numbers = [part for part in parts if not isinstance(part, str)]
        values[f"{class_name(module)}.{name}{place}"] = numbers
    for module in (*filter(is_outside, places), model):
        for tensors in (module.named_parameters, module.named_buffers):
            values.update((name, [tensor]) for name, tensor in tensors(places[module]))
    return values


def _equal(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists have equal values; NaN equals NaN."""
    return len(first) == len(second) and all(map(_equal_leaves, first, second))


def _equal_leaves(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same_type = a.shape == b.shape and a.dtype == b.dtype
        return same_type and torch.allclose(a, b, 0, 0, equal_nan=True)
    return np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc")
