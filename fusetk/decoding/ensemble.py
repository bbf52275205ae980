"""The mean of the models of an ensemble."""

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fusetk.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class EnsembleMean(NamedTuple):
    """How an ensemble averages the distributions of its models."""

    form: str = "probability"
    """What is averaged: "probability", or "log" for log-probabilities, without renormalisation."""
    weights: tuple[float, ...] = ()
    """A positive weight of each model; empty: all are equal."""

    def __call__(self, log_probs: "Tensor") -> "Tensor":
        """Return the mean (...), a log-probability, of log-probabilities (models, ...)."""
        weights = log_probs.new_tensor(self.weights or [1.0] * len(log_probs))
        shares = (weights / weights.sum()).view(-1, *[1] * (log_probs.dim() - 1))
        if self.form == "log":
            return (shares * log_probs).sum(0)
        return (log_probs + shares.log()).logsumexp(0)


def check_given(
    given_keys: Container[str], weights: Sequence[float], models: int, options: Mapping[str, str]
) -> None:
    """Raise ConfigError if a given setting of an ensemble does not fit the number of models.

    ``weights`` are the ``ensemble_weights``. ``options`` has the names of the options that give the
    settings; it is empty in Python.
    """
    for key in ("ensemble", "ensemble_weights"):
        if key in given_keys and models == 1:
            name = options.get(key, key)
            advice = "repeat -m, or leave" if options else "leave"
            raise ConfigError(f"{name} has an effect with several models only: {advice} {name} out")
    if weights and len(weights) != models:
        name = options.get("ensemble_weights", "ensemble_weights")
        raise ConfigError(
            f"{name} has {len(weights)} numbers for {models} models: give a weight for each model"
        )
