"""Settings of the search: the section ``decoding`` of a recipe."""

from typing import Literal

from pydantic import Field, model_validator

from fusetk.config import Config


class SearchConfig(Config):
    """How translations are searched for."""

    beam: int = Field(5, ge=1)
    """Hypotheses a sentence that are extended at each step; 1 is greedy search."""
    normalize: float = Field(1.0, ge=0)
    """Exponent alpha of the length penalty; 0 is no penalty."""
    penalty: Literal["power", "gnmt"] = "power"
    """By what scores are divided: `power` is length^alpha (Marian, fairseq), `gnmt` is ((5 + length) / 6)^alpha (Wu et al. 2016).
    The end mark counts in the length."""
    stop: Literal["exact", "beam", "first"] = "beam"
    """When a sentence is done: `exact`, no live hypothesis can still reach the n best; `beam`, that, or as many hypotheses as
    the beam is wide have ended; `first`, that, or n hypotheses have ended. `exact` took 1.2 to 1.8 times as long
    as `beam` where it was tried, longest with weak models; `first` finds much worse translations."""
    n_best: int = Field(1, ge=1)
    """Translations returned a sentence; at most `beam`."""
    max_length_factor: float = Field(2.0, ge=0)
    """A translation has at most `max_length_factor` * source tokens + `max_length_extra` tokens, end marks not counted."""
    max_length_extra: int = Field(10, ge=0)
    """See `max_length_factor`."""
    min_length: int = Field(1, ge=0)
    """Fewest tokens of a translation, the end mark not counted."""
    max_source_length: int = Field(1024, ge=1)
    """Longer sources, in tokens without the end mark, are cut, with a warning."""
    forbid_unknown: bool = False
    """Never produce the unknown word."""
    ensemble: Literal["probability", "log"] = "probability"
    """What is averaged over several models: probabilities, or log-probabilities (as Marian does; the mean is not a distribution
    and is not made one)."""
    batch_tokens: int = Field(16384, ge=1)
    """Size of a batch: sentences * beam * source tokens of the longest."""

    @model_validator(mode="after")
    def _n_best_fits(self) -> "SearchConfig":
        if self.n_best > self.beam:
            raise ValueError(f"n_best {self.n_best} is more than beam {self.beam}")
        return self
