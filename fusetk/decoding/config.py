"""Settings of the search: section ``decoding`` of a config, and options of ``fusetk decode``."""

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fusetk.config import Config
from fusetk.decoding.ensemble import EnsembleMean

WIDE_BEAM = 100  # a wider beam gets a warning
MOST = 1_000_000  # limit of numbers and costs; larger costs overflow in float32 sums
FORCED_BATCH_TOKENS = 8192  # default size of a batch in forced decoding: positions of both sides
ALIASES = {"length_penalty": "normalize"}  # other names of keys

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchOption:
    """Annotation of a field of SearchConfig that is also an option of ``fusetk decode``.

    The command line makes the option from the field: its name, type, bounds and choices. The help
    of the option is the first paragraph of the text under the field.
    """

    section: str  # the heading in the help
    names: tuple[str, ...] = ()  # other names, such as "-b"
    metavar: str | None = None  # the value in the help; None for flags and choices


SEARCH = "Search"
SAMPLING = "Sampling"
FORMAT = "Form of the output"
RUNNING = "Running"


class SearchConfig(Config):
    """The search for translations."""

    aliases: ClassVar[Mapping[str, str]] = ALIASES

    beam: Annotated[int, SearchOption(SEARCH, ("-b", "--beam-size"), "N")] = Field(5, ge=1, le=MOST)
    """Number of hypotheses that are extended at each step; 1 is greedy search.

    For wide beams, time and memory grow with the square of the beam. `fusetk decode` warns if it is
    above 100."""
    normalize: Annotated[float, SearchOption(SEARCH, ("-n", "--length-penalty"), "ALPHA")] = Field(
        1.0, ge=0, le=10
    )
    """Exponent alpha of the length penalty; 0 is no penalty.

    The key `length_penalty` is another name for this key."""
    # The names of ``scores.PENALTIES``. A penalty must not fall as the length grows.
    penalty: Annotated[Literal["power", "gnmt"], SearchOption(SEARCH)] = "power"
    """Form of the length penalty: scores are divided by length^alpha (`power`) or by
    ((5 + length) / 6)^alpha (`gnmt`).

    Marian and fairseq use `power`, Wu et al. 2016 use `gnmt`. The length counts EOS."""
    word_penalty: Annotated[float, SearchOption(SEARCH, metavar="X")] = Field(
        0.0, ge=-MOST, le=MOST
    )
    """Cost that is subtracted from a score for each token.

    EOS counts as a token. The cost is subtracted before the division by the length penalty, as in
    Marian. A negative cost rewards length. With `power` and ALPHA 1, the cost has no effect."""
    coverage_penalty: Annotated[float, SearchOption(SEARCH, metavar="BETA")] = Field(
        0.0, ge=0, le=MOST
    )
    """Weight of the penalty for source tokens that get little attention.

    The weight is beta of Wu et al. 2016. After the division by the length penalty, beta * sum over
    source tokens of log(min(attention, 1)) is added to the score of a finished hypothesis. The
    attention to a source token is the sum over the target tokens, averaged over layers and heads.
    The penalty changes only the order of finished hypotheses. It suits `penalty: gnmt` and an alpha
    of about 0.2. With scores per token (`normalize: 1`) it outweighs the scores and favours very
    long translations."""
    stop: Annotated[Literal["exact", "beam", "first"], SearchOption(SEARCH)] = "exact"
    """End of the search of a sentence. `exact`: when no live hypothesis can become one of the n
    best. `beam`: also when `beam` hypotheses are finished. `first`: also when n hypotheses are
    finished.

    `exact` took up to 1.8 times as long as `beam` in our measurements, longest with weak models.
    If no hypothesis of a line gets EOS, `exact` searches to the maximum length: the bound of a live
    hypothesis is its score divided by the penalty of that length. A line that repeats one word
    1,000 times took about 40 times as long as with `beam`. `first` finds much worse
    translations."""
    n_best: Annotated[int, SearchOption(FORMAT, metavar="N")] = Field(1, ge=1, le=MOST)
    """Number of translations of a sentence: at most `beam`, or any number with `sample`."""
    min_length: Annotated[int, SearchOption(SEARCH, metavar="N")] = Field(1, ge=0, le=100_000)
    """Minimum number of tokens of a translation.

    EOS does not count."""
    min_length_factor: Annotated[float, SearchOption(SEARCH, metavar="X")] = Field(
        0.0, ge=0, le=1000
    )
    """Minimum number of tokens of a translation for each source token.

    EOS does not count, and the product is rounded down. The larger of the two minima holds."""
    max_length_factor: Annotated[float, SearchOption(SEARCH, metavar="X")] = Field(
        2.0, ge=0, le=1000
    )
    """Maximum number of tokens of a translation for each source token; `max_length_extra` is added.

    EOS does not count. The maximum is raised if the minimum, a prefix or phrases need more tokens.
    It never exceeds the number of positions of the model."""
    max_length_extra: Annotated[int, SearchOption(SEARCH, metavar="N")] = Field(
        10, ge=0, le=100_000
    )
    """Number of tokens that is added to the maximum length; see `max_length_factor`."""
    max_source_length: int = Field(1024, ge=1)
    """Maximum number of source tokens, without EOS.

    A longer source is truncated, with a warning."""
    no_repeat_ngram: Annotated[int, SearchOption(SEARCH, metavar="N")] = Field(0, ge=0)
    """Length of token sequences that must not occur twice in a translation; 0 allows all."""
    forbid_unknown: Annotated[bool, SearchOption(SEARCH)] = False
    """Never produce the unknown word.

    An unknown word of a prefix or phrase still becomes the unknown word."""
    groups: Annotated[int, SearchOption(SEARCH, metavar="N")] = Field(1, ge=1)
    """Number of groups of diverse beam search, all of equal size; 1 is plain beam search.

    A token costs a group `diversity` for each time that an earlier group chose it at the same step
    (Vijayakumar et al. 2018). At most `n_best` translations of all groups are returned, without
    duplicates. `stop` applies to each group."""
    diversity: Annotated[float, SearchOption(SEARCH, metavar="X")] = Field(0.5, ge=0, le=MOST)
    """Cost of a token that an earlier group chose at the same step, in natural logarithms.

    The score of a translation does not include it."""
    sample: Annotated[bool, SearchOption(SAMPLING)] = False
    """Draw `n_best` translations from the model's distribution instead of searching.

    They are returned in the order of their scores after the length penalty."""
    temperature: Annotated[float, SearchOption(SAMPLING, metavar="X")] = Field(
        1.0, ge=1e-6, le=MOST
    )
    """Temperature of sampling: log-probabilities are divided by it before a token is drawn.

    Scores are those of the model, without the temperature."""
    top_k: Annotated[int, SearchOption(SAMPLING, metavar="K")] = Field(0, ge=0)
    """Sample only from the K most probable tokens; 0 is all tokens."""
    top_p: Annotated[float, SearchOption(SAMPLING, metavar="P")] = Field(1.0, gt=0, le=1)
    """Sample only from the smallest set of most probable tokens that reaches this probability; 1 is
    all tokens.

    This is nucleus sampling (Holtzman et al. 2020). With `top_k`, the probabilities are those among
    the K most probable tokens."""
    seed: Annotated[int, SearchOption(SAMPLING, metavar="N")] = Field(1, ge=0, lt=1 << 64)
    """Seed of sampling, combined with the line number.

    So a sample depends neither on the batches nor on the shards."""
    ensemble: Annotated[Literal["probability", "log"], SearchOption(SEARCH)] = "probability"
    """Values that an ensemble averages: probabilities, or log-probabilities (`log`).

    Marian averages log-probabilities. Their mean is not a distribution, and it is not
    renormalised."""
    ensemble_weights: Annotated[
        tuple[Annotated[float, Field(gt=0, le=MOST)], ...], SearchOption(SEARCH, metavar="W,W...")
    ] = ()
    """Weights of the models in the mean of an ensemble, one for each model, such as 0.7,0.3; by
    default all are equal.

    They are divided by their sum. The config of a run cannot have them."""
    batch_tokens: Annotated[int, SearchOption(RUNNING, metavar="N")] = Field(16384, ge=1)
    """Largest size of a batch: sentences * beam * source tokens of the longest sentence.

    On a CPU, up to four batches are searched at the same time, with at most twice this size
    together."""

    @property
    def group_beam(self) -> int:
        """The number of hypotheses of each group."""
        return self.beam // self.groups

    @property
    def ensemble_mean(self) -> EnsembleMean:
        return EnsembleMean(self.ensemble, self.ensemble_weights)

    @model_validator(mode="before")
    @classmethod
    def _aliases(cls, values: Any) -> Any:
        """Accept ``length_penalty`` for ``normalize``, with a notice."""
        if not isinstance(values, dict):
            return values
        for alias, key in cls.aliases.items():
            if alias in values and key in values:
                raise ValueError(f"{alias} and {key} are two names of one key: give one of them")
            if alias in values:
                _notify(alias, key)
        return canonical(values)

    @model_validator(mode="after")
    def _options_fit(self) -> "SearchConfig":
        if not self.sample and self.n_best > self.beam:
            raise ValueError(
                f"n_best {self.n_best} is more than beam {self.beam}: set beam to at least "
                f"{self.n_best}"
            )
        if not self.sample and self.beam % self.groups:
            raise ValueError(f"beam {self.beam} is not a multiple of groups {self.groups}")
        self._check_effect(self._changed())
        return self

    def _changed(self) -> set[str]:
        """Return the keys whose value is not the default."""
        fields = type(self).model_fields
        return {key for key, field in fields.items() if getattr(self, key) != field.default}

    def check_given(self, keys: Set[str], before: "SearchConfig") -> None:
        """Raise ValueError if a key that the user gives for this search has no effect.

        The config of the run, ``before``, may have other values of `beam`, `stop` and `penalty`
        although they have no effect: the user may then set `sample`, or `normalize` to 0. A key
        without an effect may be given its default value if ``before`` has another value.
        """
        if self.sample and (unused := keys & {"beam", "stop"}):
            advice = f"omit {min(unused)}"
            if "sample" not in keys:
                advice += ", or turn off the sampling of the run (--no-sample)"
            raise ValueError(f"{min(unused)} has no effect on samples: {advice}")
        if "penalty" in keys and self.normalize == 0:
            raise ValueError("penalty has no effect with normalize 0: omit penalty")
        self._check_effect(keys - (before._changed() - self._changed()))

    def _check_effect(self, keys: Set[str]) -> None:
        if self.sample:
            if unused := keys & {"groups", "diversity", "coverage_penalty"}:
                key = min(unused)
                raise ValueError(
                    f"{key} has no effect on samples: {self._removal_advice(key)}, or search "
                    "instead of sampling"
                )
            return
        if "word_penalty" in keys and self.penalty == "power" and self.normalize == 1:
            raise ValueError(
                "word_penalty has no effect with penalty power and normalize 1, because all scores "
                "change by the same number: choose another normalize, or "
                + self._removal_advice("word_penalty")
            )
        if "diversity" in keys and self.groups == 1:
            raise ValueError(
                "diversity has an effect with groups only: set groups, too, or "
                + self._removal_advice("diversity")
            )
        if unused := keys & {"temperature", "top_k", "top_p", "seed"}:
            key = min(unused)
            raise ValueError(
                f"{key} has an effect on samples only: set sample, too, or "
                + self._removal_advice(key)
            )

    def _removal_advice(self, key: str) -> str:
        """Return what to do with a key that has no effect."""
        if key not in self._changed():
            return f"omit {key}"
        default = type(self).model_fields[key].default
        return f"omit {key}, or set {key} to {default} if the config of the run has it"

    def wide_beam_warning(self, vocabulary: int) -> str | None:
        """Return a sentence on the cost of a wide beam with this target vocabulary, or None."""
        if self.sample or self.beam <= WIDE_BEAM:
            return None
        candidates = self.beam * min(self.group_beam + 1, vocabulary)
        default = type(self).model_fields["beam"].default
        advice = "; --stop beam may end sentences earlier" if self.stop == "exact" else ""
        return (
            f"beam {self.beam} is slow: each step sorts {candidates:,} candidates for each "
            f"sentence, beam {default} sorts {default * (default + 1)}; a smaller beam (-b) takes "
            f"less time and memory{advice}"
        )


@cache
def _notify(alias: str, key: str) -> None:
    log.warning("decoding.%s is read as decoding.%s", alias, key)


def multiple_of_groups(beam: int, groups: int) -> int:
    """Return the smallest multiple of ``groups`` that is at least ``beam``."""
    return beam + -beam % groups


def canonical(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the other names of keys (``ALIASES``) by the names of the fields."""
    return {ALIASES.get(key, key): value for key, value in settings.items()}
