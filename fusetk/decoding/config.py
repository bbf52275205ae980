"""Settings of the search: the section ``decoding`` of a recipe."""

from typing import Literal

from pydantic import Field, model_validator

from fusetk.config import Config

WIDE = 100  # hypotheses; beams above it are slow enough for a warning


class SearchConfig(Config):
    """How translations are searched for."""

    beam: int = Field(5, ge=1)
    """Hypotheses a sentence that are extended at each step; 1 is greedy search. Time and memory grow with the square of a wide beam;
    `fusetk decode` warns above 100."""
    normalize: float = Field(1.0, ge=0, le=10)
    """Exponent alpha of the length penalty; 0 is no penalty."""
    penalty: Literal["power", "gnmt"] = "power"
    """By what scores are divided: `power` is length^alpha (Marian, fairseq), `gnmt` is ((5 + length) / 6)^alpha (Wu et al. 2016).
    The end mark counts in the length."""
    word_penalty: float = 0.0
    """Taken from a score for each token, the end mark counted, before the length penalty divides it (Marian); below 0 it rewards
    length."""
    coverage_penalty: float = Field(0.0, ge=0)
    """Beta of Wu et al. 2016: beta * sum over source tokens of log(min(attention that it got, 1)) is added to the score of a finished
    hypothesis after the length penalty; attention is the mean over layers and heads. It chooses among what the beam finishes. Meant for
    `penalty: gnmt` and an alpha of about 0.2: beside mean scores of tokens (`normalize: 1`) it outweighs them, and favours translations
    that hardly end."""
    stop: Literal["exact", "beam", "first"] = "exact"
    """When a sentence is done: `exact`, no live hypothesis can still reach the n best; `beam`, that, or as many hypotheses as
    the beam is wide have ended; `first`, that, or n hypotheses have ended. `exact` took 1.2 to 1.8 times as long
    as `beam` where it was tried, longest with weak models; `first` finds much worse translations."""
    n_best: int = Field(1, ge=1)
    """Translations returned a sentence; at most `beam`, of samples any number."""
    max_length_factor: float = Field(2.0, ge=0, le=1000)
    """A translation has at most `max_length_factor` * source tokens + `max_length_extra` tokens, end marks not counted; more where the
    minimum, a prefix or phrases want more, never more than the model has positions."""
    max_length_extra: int = Field(10, ge=0, le=100_000)
    """See `max_length_factor`."""
    min_length: int = Field(1, ge=0)
    """Fewest tokens of a translation, the end mark not counted."""
    min_length_factor: float = Field(0.0, ge=0, le=1000)
    """Fewest tokens of a translation for each source token, end marks not counted, rounded down; the larger of the two minima holds."""
    max_source_length: int = Field(1024, ge=1)
    """Longer sources, in tokens without the end mark, are cut, with a warning."""
    forbid_unknown: bool = False
    """Never produce the unknown word."""
    no_repeat_ngram: int = Field(0, ge=0)
    """No run of so many tokens stands twice in a translation; 0 allows all."""
    groups: int = Field(1, ge=1)
    """Diverse beam search (Vijayakumar et al. 2018): the beam is searched in so many equal groups, and a token costs a group `diversity`
    for each time that groups before it chose it at the same step. At most `n_best` of what all found are returned, none twice; `stop`
    counts within a group."""
    diversity: float = Field(0.5, ge=0)
    """What a token costs that another group chose, in natural logarithms; the score of a translation is without it."""
    sample: bool = False
    """Draw `n_best` translations from the model's distribution instead of searching, and put them in order of their scores."""
    temperature: float = Field(1.0, ge=1e-6)
    """Of samples: logarithms of probabilities are divided by it before a token is drawn; scores are those of the model."""
    top_k: int = Field(0, ge=0)
    """Of samples: draw from the so many likeliest tokens only; 0 is all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Of samples: draw from the likeliest tokens only that together first reach this probability (Holtzman et al. 2020); 1 is all. With
    `top_k`, of what that leaves."""
    seed: int = Field(1, ge=0, lt=1 << 64)
    """Of samples: fixes them, together with a line's number, so that neither batches nor shards matter."""
    ensemble: Literal["probability", "log"] = "probability"
    """What is averaged over several models: probabilities, or log-probabilities (as Marian does; the mean is not a distribution
    and is not made one)."""
    batch_tokens: int = Field(16384, ge=1)
    """Size of a batch: sentences * beam * source tokens of the longest."""

    @model_validator(mode="after")
    def _fits(self) -> "SearchConfig":
        given = {
            key
            for key, field in type(self).model_fields.items()
            if getattr(self, key) != field.default
        }
        if self.sample:
            if useless := given & {"groups", "diversity", "coverage_penalty"}:
                raise ValueError(
                    f"{min(useless)} is of the search and does nothing to samples: leave out that, or sample"
                )
            return self
        if self.n_best > self.beam:
            raise ValueError(f"n_best {self.n_best} is more than beam {self.beam}")
        if self.beam % self.groups:
            raise ValueError(
                f"beam {self.beam} cannot be parted into {self.groups} groups of one size"
            )
        if "diversity" in given and self.groups == 1:
            raise ValueError("diversity is of groups: set groups, too")
        if useless := given & {"temperature", "top_k", "top_p", "seed"}:
            raise ValueError(f"{min(useless)} is of samples: set sample, too")
        return self

    def slow(self, vocabulary: int) -> str | None:
        """A sentence on what a wide beam costs with so many target words; None for a beam of usual width."""
        if self.sample or self.beam <= WIDE:
            return None
        width = self.beam // self.groups
        candidates = self.beam * min(width + 1, vocabulary)
        usual = type(self).model_fields["beam"].default
        advice = "; --stop beam may end sentences earlier" if self.stop == "exact" else ""
        return (
            f"beam {self.beam} is slow: each step sorts {candidates:,} candidates a sentence, beam {usual} sorts "
            f"{usual * (usual + 1)}; a smaller beam (-b) takes less time and memory{advice}"
        )
