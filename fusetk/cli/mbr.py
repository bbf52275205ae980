"""The options --mbr and --candidates of ``fusetk decode``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusetk.decoding.config import SearchConfig, multiple_of_groups
from fusetk.errors import ConfigError

if TYPE_CHECKING:
    from fusetk.decoding.sentence_utility import Utility


# sacreBLEU's tokenisers for languages without spaces, where its default makes one word of a clause
TOKENIZERS = {"zh": "zh", "ja": "char", "th": "char"}


def mbr_utility(name: str, language: str = "en") -> "Utility":
    """Return the utility `chrf`, `bleu` or `comet` for translations into a language.

    Raises DataError if COMET is not installed or its model cannot be loaded.
    """
    if name == "comet":
        from fusetk.evaluation.comet import CometModel

        return CometModel().compare
    from fusetk.decoding.sentence_utility import utility

    return utility(name, TOKENIZERS.get(language) if name == "bleu" else None)


def candidate_settings(
    config: SearchConfig, settings: Mapping[str, Any], candidates: int | None
) -> dict[str, Any]:
    """Return ``settings``, which change ``config``, with the number of candidates as ``n_best``.

    The beam of a search becomes at least as large. Raises ConfigError if --n-best is more than
    --candidates.
    """
    from fusetk.decoding.mbr import CANDIDATES

    values = {**config.model_dump(), **settings}
    number = candidates or max(CANDIDATES, values["n_best"])
    if values["n_best"] > number:
        raise ConfigError(
            f"--n-best {values['n_best']} is more than --candidates {number}: raise --candidates"
        )
    if values["sample"]:
        return {**settings, "n_best": number}
    beam = multiple_of_groups(max(values["beam"], number), values["groups"])
    return {**settings, "n_best": number, "beam": beam}
