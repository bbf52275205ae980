"""fusetk: layer fusion for encoder-decoder translation models, from raw text to scored translation."""

__version__ = "0.1.0"
