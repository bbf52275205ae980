"""The mean of the models of an ensemble."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fusetk.errors import ConfigError, quantity

if TYPE_CHECKING:
    from torch import Tensor


class EnsembleMean(NamedTuple):
    """The mean of the distributions of an ensemble's models."""

    form: str
    """The averaged values: "probability", or "log" for log-probabilities, not renormalised."""
    weights: tuple[float, ...]
    """A positive weight of each model; empty: all are equal."""

    def __call__(self, log_probs: "Tensor") -> "Tensor":
        """Average log-probabilities (models, ...) over the models to log-probabilities (...)."""
        weights = self.weights or [1.0] * len(log_probs)
        largest = max(weights)  # the sum of very large or small weights is not a float32 number
        relative = log_probs.new_tensor([weight / largest for weight in weights])
        shares = (relative / relative.sum()).view(-1, *[1] * (log_probs.dim() - 1))
        if self.form == "log":
            return (shares * log_probs).sum(0)
        return (log_probs + shares.log()).logsumexp(0)


EQUAL_MEAN = EnsembleMean("probability", ())
SETTINGS = ("ensemble", "ensemble_weights")  # keys of SearchConfig


def check_ensemble_settings(
    settings: Mapping[str, Any], models: int, options: Mapping[str, str]
) -> None:
    """Raise ConfigError if a given setting of an ensemble does not fit the number of models.

    ``settings`` are valid settings of the search. ``options`` has the names of the options that
    give them; it is empty in Python.
    """
    for key in SETTINGS:
        if key in settings and models == 1:
            name = options.get(key, key)
            advice = "repeat -m, or omit" if options else "omit"
            raise ConfigError(f"{name} has an effect with several models only: {advice} {name}")
    weights = settings.get("ensemble_weights")
    if weights and len(weights) != models:
        name = options.get("ensemble_weights", "ensemble_weights")
        raise ConfigError(
            f"{name} has {quantity(len(weights), 'number')} for {quantity(models, 'model')}: "
            "give a weight for each model"
        )
