"""Costs of systems that were measured together: the file ``costs/costs.json`` of a results folder.

`tests/benchmarks/costs.py` measures them. The systems take turns in one process, so a change of the
machine's speed affects all of them.
"""

import statistics
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from fusetk.errors import DataError
from fusetk.files import write_if_changed
from fusetk.reporting.result_files import SavedPart, first_problem, json_text

# Not beside the results: each JSON file there is the result of a run.
NAME = Path("costs") / "costs.json"


class SystemCost(SavedPart):
    """The costs of a system. A speed has a value for each turn."""

    training: list[PositiveFloat] = Field(min_length=1)  # target tokens a second
    decoding: list[PositiveFloat] = Field(min_length=1)  # sentences a second
    bytes_per_token: float  # memory that a batch keeps for its gradients, for each target token

    @property
    def training_speed(self) -> float:
        """The median speed of training in target tokens a second."""
        return statistics.median(self.training)


class MeasuredCosts(SavedPart):
    """The costs of all systems that were measured in one run."""

    format: Literal[1] = 1
    processor: str
    device: str
    settings: str  # the settings of the measurement, in words
    revision: str | None  # of the code
    systems: dict[str, SystemCost]  # by the name of the system

    @model_validator(mode="after")
    def _equal_turns(self) -> "MeasuredCosts":
        for name in ("training", "decoding"):
            if len({len(getattr(cost, name)) for cost in self.systems.values()}) > 1:
                raise ValueError(f"systems have different numbers of turns of {name}")
        return self

    def ratio(self, quantity: Literal["training", "decoding"], name: str, base: str) -> float:
        """Return the speed of a system relative to another one: the median of the turns' ratios."""
        own, other = (getattr(self.systems[system], quantity) for system in (name, base))
        return statistics.median(a / b for a, b in zip(own, other, strict=True))


def read_costs(folder: Path) -> MeasuredCosts | None:
    """Return the measured costs of a results folder; None if there are none.

    Raises DataError if the file is damaged.
    """
    path = folder / NAME
    try:
        return MeasuredCosts.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise DataError(
            f"{path} is damaged ({first_problem(error)}): remove it and measure again"
        ) from None
    except ValueError:
        raise DataError(f"{path} is damaged: remove it and measure again") from None


def write_costs(folder: Path, costs: MeasuredCosts) -> Path:
    """Write the measured costs of a results folder and return the path of the file."""
    path = folder / NAME
    write_if_changed(path, f"{json_text(costs.model_dump(mode='json'))}\n".encode())
    return path
