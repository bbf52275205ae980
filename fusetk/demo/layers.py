"""The layer weights of the demo's fusion for one sentence."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fusetk.demo.results import DemoFiles, sentence_to_plot


class LayerWeights(NamedTuple):
    """The weights of the layers at each token that the decoder reads."""

    source: str
    tokens: Sequence[str]  # that the decoder reads, <s> first
    layers: Sequence[str]
    shares: np.ndarray  # (tokens, layers); each row sums to 1


def layer_weights(files: DemoFiles) -> LayerWeights:
    """Return the mean over the hops of the decoder's fusion, for the sentence in the pictures."""
    from fusetk import system
    from fusetk.evaluation.layer_shares import find_fusions, trace_fusions
    from fusetk.plotting.attention import TokenPair
    from fusetk.plotting.sentences import Reader, command_line_pairs

    source, target = sentence_to_plot(files)
    loaded = system.load_model(files.run, "cpu")
    reader = Reader(loaded.pipeline, False, loaded.model.max_positions, strict=True)
    [sentence] = reader(command_line_pairs([source], [target]))
    [traced] = trace_fusions(loaded.model, [sentence.ids], find_fusions(loaded.model, ["decoder"]))
    tokens, _ = TokenPair(sentence.source, sentence.target or []).labels("decoder", "self")
    return LayerWeights(source, tokens, traced.layers, traced.weights[0].mean(1))
