"""Attention to learned means of the encoder layers (Bapna et al. 2018)."""

from typing import Any

import numpy as np
import pytest
import torch

from fusetk.config import ComponentConfig
from fusetk.errors import ConfigError
from fusetk.models.attend import ATTENDS, OutputSource, build_attended_sources
from fusetk.models.seq2seq import Memory
from tests.contracts.systems import build
from tests.helpers.equations import layer_norm

D, HISTORY, LAYERS = 6, 4, 3  # width, encoder layers with the embedding, decoder layers


def memory() -> Memory:
    generator = torch.Generator().manual_seed(2)
    history = tuple(
        torch.randn(2, 5, D, generator=generator, dtype=torch.float64) for _ in range(HISTORY)
    )
    return Memory(history, history[-1], torch.ones(2, 5, dtype=torch.bool))


def transparent(**options: Any) -> Any:
    config = ATTENDS["transparent"].Config.model_validate({"kind": "transparent", **options})
    return ATTENDS["transparent"](config, [D] * HISTORY, D, LAYERS).double()


def test_each_decoder_layer_attends_to_its_own_mean() -> None:
    attend = transparent(norm_layers=True)
    with torch.no_grad():
        attend.weight.normal_()
    sources = attend.sources(memory())
    w = attend.weight.detach().numpy()
    weights = np.exp(w) / np.exp(w).sum(0)
    layers = [layer.numpy() for layer in memory().history]
    normed = [layer_norm(x) for x in layers]
    assert attend.widths == [D] * LAYERS and attend.weight.numel() == HISTORY * LAYERS
    for j in range(LAYERS):
        assert attend.sources_of(j) == slice(j, j + 1)
        expected = sum(weights[i, j] * normed[i] for i in range(HISTORY))
        np.testing.assert_allclose(sources[j].detach().numpy(), expected, rtol=1e-10)


class Opposite(OutputSource):
    """Layer i of n attends to the sources i and n - 1 - i."""

    chosen: Any = None  # what ``sources_of`` returns instead

    @property
    def widths(self) -> list[int]:
        return [D] * HISTORY

    def sources_of(self, layer: int) -> Any:
        return [layer, HISTORY - 1 - layer] if self.chosen is None else self.chosen


def test_a_layer_may_attend_to_a_list_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = f"{__name__}:Opposite"
    attend: Any = build_attended_sources(ComponentConfig(kind=kind), [D] * HISTORY, D, LAYERS)
    assert [attend.indices_of(layer) for layer in range(LAYERS)] == [[0, 3], [1, 2], [2, 1]]
    for chosen in ([], 1, slice(4, 5), [4], ["a"]):
        monkeypatch.setattr(Opposite, "chosen", chosen)
        with pytest.raises(
            ConfigError, match=r"Opposite.sources_of\(0\) returned .* at least one source"
        ):
            build_attended_sources(ComponentConfig(kind=kind), [D] * HISTORY, D, LAYERS)


def test_new_weights_are_the_mean_and_a_large_weight_is_one_layer() -> None:
    attend = transparent()
    mean = torch.stack(memory().history).mean(0)
    for source in attend.sources(memory()):
        torch.testing.assert_close(source, mean)
    with torch.no_grad():
        attend.weight[-1] = 100.0
    for source in attend.sources(memory()):
        torch.testing.assert_close(source, memory().output)


def test_a_large_weight_of_the_highest_layer_is_attention_to_the_top() -> None:
    model, top = build("transformer", decoder={"attend": "transparent"}), build("transformer")
    missing, _ = top.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    with torch.no_grad():
        model.attend.weight[-1] = 100.0
    src, tgt = torch.tensor([[4, 5, 6]]), torch.tensor([[2, 7]])
    torch.testing.assert_close(model(src, src > 0, tgt), top(src, src > 0, tgt))
