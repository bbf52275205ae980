"""Verification that a checkpoint can hold the complete state of an optimiser."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusetk.errors import ConfigError

INT64 = range(-(2**63), 2**63)


class OptimizerCheck:
    """Verification of an optimiser, which may be a class outside fusetk, after its first step.

    A checkpoint has the tensors and numbers in ``optimizer.state[parameter]``. Other state would be
    lost when training resumes. Attributes of the optimiser cannot be verified.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        """Copy the options of the new optimiser."""
        self.optimizer = optimizer
        self.options = self._options()

    def check(self) -> None:
        """Raise ConfigError if the state after a step cannot be saved."""
        for problem in self._problems():
            raise ConfigError(
                f"the optimiser {type(self.optimizer).__name__} {problem}, which a checkpoint "
                "cannot hold: keep all state in state[parameter], as a dict of tensors and numbers"
            )

    def _problems(self) -> Iterator[str]:
        parameters = {p for group in self.optimizer.param_groups for p in group["params"]}
        memory = set()
        for parameter, values in self.optimizer.state.items():
            if parameter not in parameters:
                yield f"has state[{parameter!r}], whose key is not a parameter"
                continue
            if not isinstance(values, dict):
                yield f"has a state[parameter] of type {type(values).__name__}"
                continue
            for name, value in values.items():
                if not isinstance(name, str) or ":" in name:
                    yield f"has the key {name!r} in state[parameter]"
                elif isinstance(value, Tensor):
                    address = value.data_ptr()
                    if address and address in memory:
                        yield f"shares the memory of {name!r} with another tensor of its state"
                    memory.add(address)
                elif not isinstance(value, int | float | None):
                    yield f"has {name!r} of type {type(value).__name__} in state[parameter]"
                elif isinstance(value, int) and value not in INT64:
                    yield f"has {name!r} with more than 64 bits in state[parameter]"
        for before, now in zip(self.options, self._options(), strict=True):
            for name, value in now.items():
                if name not in before or not _equal(before[name], value):
                    yield f"changes the option {name!r} of a parameter group in a step"

    def _options(self) -> list[dict[str, Any]]:
        """Return a copy of the options of each group, except the rate, which the schedule sets."""
        return [
            {
                name: copy.deepcopy(value)
                for name, value in group.items()
                if name not in ("params", "lr")
            }
            for group in self.optimizer.param_groups
        ]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)
