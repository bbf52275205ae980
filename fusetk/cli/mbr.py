"""The options --mbr and --candidates of ``fusetk decode``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusetk.decoding.mbr import MbrTranslator
    from fusetk.decoding.translate import Translator


def mbr_translator(
    translator: "Translator", metric: str, candidates: int | None
) -> "MbrTranslator":
    """Return a translator that ranks the candidates of another one by their expected utility.

    Raises ConfigError if --n-best is more than --candidates.
    """
    from fusetk.decoding.mbr import CANDIDATES, MbrTranslator, utility
    from fusetk.decoding.translate import Translator
    from fusetk.errors import ConfigError
    from fusetk.system import changed

    config = translator.config
    number = candidates or max(CANDIDATES, config.n_best)
    if config.n_best > number:
        raise ConfigError(
            f"--n-best {config.n_best} is more than --candidates {number}: raise --candidates"
        )
    beam = max(config.beam, number)
    beam += -beam % config.groups
    settings = {"n_best": number} if config.sample else {"n_best": number, "beam": beam}
    searching = Translator(
        translator.models, translator.pipeline, changed(config, settings), translator.extras
    )
    return MbrTranslator(searching, utility(metric), config.n_best)
