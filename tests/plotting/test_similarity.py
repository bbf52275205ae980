import numpy as np
import pytest
import torch

from fusetk.data.vocab import BOS, EOS
from fusetk.errors import DataError
from fusetk.models.stack import Stack, StackOutput
from fusetk.plotting.similarity import SimilarityMeans
from tests.contracts.systems import SYSTEMS
from tests.plotting.models import stack, transformer

PAIRS = [([4, 5, 6], [7, 8]), ([5], [4, 4, 6, 8, 7]), ([8, 7, 6, 5, 4], [6])]


def test_numbers_are_mean_cosines() -> None:
    model = transformer(stack("average"), stack("last", 4)).eval()
    means = SimilarityMeans(model)
    means.add(PAIRS)
    assert means.sentences == 3
    positions: dict[str, list[np.ndarray]] = {"encoder": [], "decoder": []}

    def keep(module: torch.nn.Module, arguments: object, output: StackOutput) -> None:
        assert isinstance(module, Stack)
        layers = np.stack([layer[0].detach().numpy() for layer in output.history])  # (L, T, D)
        units = layers / np.linalg.norm(layers, axis=-1, keepdims=True)
        positions[module.name] += list(np.einsum("itd,jtd->tij", units, units))

    for module in model.modules():
        if isinstance(module, Stack):
            module.register_forward_hook(keep)
    for source, target in PAIRS:  # without padding
        ids = torch.tensor([[*source, EOS]])
        model(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([[BOS, *target]]))
    for panel, (side, layers) in zip(
        means.panels(), {"encoder": 3, "decoder": 4}.items(), strict=True
    ):
        assert panel.name == f"{side}.similarity"
        assert panel.x == panel.y == [f"l{i}" for i in range(layers + 1)]
        np.testing.assert_allclose(panel.matrix, np.mean(positions[side], 0), atol=1e-5)
        np.testing.assert_allclose(np.diag(panel.matrix), 1, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if not name.startswith("recurrent")])
def test_every_system_with_layers_has_a_similarity(name: str) -> None:
    means = SimilarityMeans(SYSTEMS[name]())
    means.add(PAIRS)
    drawn = means.panels()
    assert [panel.name for panel in drawn] == ["encoder.similarity", "decoder.similarity"]
    for panel in drawn:
        numbers = panel.matrix[np.isfinite(panel.matrix)]
        assert len(numbers) >= len(panel.x) and np.abs(numbers).max() < 1 + 1e-5


def test_layers_of_different_widths_have_no_cosine() -> None:
    means = SimilarityMeans(SYSTEMS["conv"]())
    means.add(PAIRS)
    matrix = means.panels()[0].matrix
    assert np.isnan(matrix[1, 2]) and np.isfinite(np.diag(matrix)).all()


def test_a_recurrent_model_has_no_stack() -> None:
    with pytest.raises(DataError, match="no stack of layers"):
        SimilarityMeans(SYSTEMS["recurrent"]())
