"""The backbones.

To add a backbone, write its file and add it to ``MODELS``. A class outside fusetk is named in the
config as ``package.module:Name``.
"""

from fusetk.config import outside_error, outside_kinds, place_outside_libraries, resolve
from fusetk.errors import ConfigError, FusetkError, first_line, out_of_memory
from fusetk.models.conv import Conv
from fusetk.models.coordinated import Coordinated
from fusetk.models.recurrent import Recurrent
from fusetk.models.seq2seq import ModelConfig, Seq2Seq
from fusetk.models.transformer import Transformer

MODELS: dict[str, type[Seq2Seq]] = {
    "transformer": Transformer,
    "conv": Conv,
    "coordinated": Coordinated,
    "recurrent": Recurrent,
}

# PyTorch's messages about sizes that have more than 64 bits.
OVERFLOWS = ("Storage size calculation overflowed", "Overflow when unpacking long")

__all__ = ["MODELS", "Seq2Seq", "build_model"]


def build_model(config: ModelConfig, source_size: int, target_size: int) -> Seq2Seq:
    """Build the model that ``config.kind`` names, with initial weights.

    Vocabulary sizes include the special tokens. Raises ConfigError if they do not suit the config,
    if a tensor would be too large, or if a class outside fusetk fails.
    """
    model: Seq2Seq
    try:
        model = resolve(config.kind, MODELS, Seq2Seq)(config, source_size, target_size)
        next(model.parameters(), None)  # fails if a class did not call super().__init__
    except FusetkError:
        raise
    except (Exception, SystemExit) as error:
        if any(text in str(error) for text in OVERFLOWS):
            raise ConfigError(
                f"a tensor of the model is too large ({first_line(error)}): reduce the sizes of "
                "the model or of the vocabularies"
            ) from None
        kinds = sorted(outside_kinds(config.model_dump()))
        if not kinds or out_of_memory(error):
            raise
        place = place_outside_libraries(error)
        advice = ""
        if (isinstance(error, AttributeError) and not place) or "Module.__init__" in str(error):
            advice = ". Does its __init__ call super().__init__ with all arguments?"
        elif isinstance(error, TypeError) and not place and ".__init__()" in str(error):
            advice = ". Does its __init__ have the arguments of its base class?"
        raise ConfigError(
            f"a model with {' or '.join(kinds)} cannot be built: {outside_error(error)}{advice}"
        ) from error
    return model
