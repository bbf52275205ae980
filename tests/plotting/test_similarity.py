from collections.abc import Sequence

import numpy as np
import pytest
import torch

from fusetk.data.vocab import BOS, EOS
from fusetk.decoding.target_scores import IdPair
from fusetk.errors import DataError, Diverged
from fusetk.models.seq2seq import Seq2Seq
from fusetk.models.stack import StackOutput
from fusetk.plotting.panel import Panel
from fusetk.plotting.similarity import SimilarityMeans, find_stacks
from tests.contracts.systems import SYSTEMS

PAIRS = [
    ([4, 5, 6, EOS], [7, 8]),
    ([5, EOS], [4, 4, 6, 8, 7]),
    ([8, 7, 6, 5, 4, EOS], [6]),
]


def draw(model: Seq2Seq, pairs: Sequence[IdPair]) -> dict[str, Panel]:
    means = SimilarityMeans(model, find_stacks(model))
    means.add(pairs)
    assert means.sentences == len(pairs)
    return {panel.name: panel for panel in means.panels()}


@pytest.mark.parametrize(
    "name",
    ["transformer", "coordinated", "coordinated, post-norm, nothing shared"],
)
def test_numbers_are_mean_cosines_of_unpadded_passes(name: str) -> None:
    model = SYSTEMS[name]().eval()
    drawn = draw(model, PAIRS)
    cosines: dict[str, list[np.ndarray]] = {"encoder": [], "decoder": []}
    outputs: list[StackOutput] = []
    for stack in find_stacks(model).values():
        stack.register_forward_hook(lambda module, arguments, output: outputs.append(output))
    for source, target in PAIRS:
        ids = torch.tensor([source])
        memory = model.encode(ids, torch.ones_like(ids, dtype=torch.bool))
        model.decode(torch.tensor([[BOS, *target]]), model.start(memory))
        for side, output in zip(cosines, outputs, strict=True):  # encode is called first
            layers = np.stack([layer[0].detach().numpy() for layer in output.history])  # (L, T, D)
            units = layers / np.linalg.norm(layers, axis=-1, keepdims=True)
            cosines[side] += list(np.einsum("itd,jtd->tij", units, units))
        outputs.clear()
    for side, numbers in cosines.items():
        panel = drawn[f"{side}.similarity"]
        np.testing.assert_allclose(panel.matrix, np.mean(numbers, 0), atol=1e-4)
        np.testing.assert_allclose(np.diag(panel.matrix), 1, atol=1e-5)
        # Nothing reads the output of the highest encoder layer of a coordinated model.
        layers_read = 2 if side == "encoder" and name.startswith("coordinated") else 3
        assert panel.x == panel.y == ["l0", "l1", "l2"][:layers_read]


@pytest.mark.parametrize("name", [name for name in SYSTEMS if not name.startswith("recurrent")])
def test_every_system_with_layers_has_a_similarity(name: str) -> None:
    drawn = draw(SYSTEMS[name](), PAIRS)
    assert list(drawn) == ["encoder.similarity", "decoder.similarity"]
    for panel in drawn.values():
        numbers = panel.matrix[np.isfinite(panel.matrix)]
        assert len(numbers) >= len(panel.x) and np.abs(numbers).max() < 1 + 1e-5


def test_layers_of_different_widths_have_no_cosine() -> None:
    matrix = draw(SYSTEMS["conv"](), PAIRS)["encoder.similarity"].matrix
    assert np.isnan(matrix[1, 2]) and np.isfinite(np.diag(matrix)).all()
    panel = draw(SYSTEMS["conv, summaries and fusions above them"](), PAIRS)["encoder.similarity"]
    assert panel.x == ["sum", "l3"]


def test_a_recurrent_model_has_no_stack() -> None:
    with pytest.raises(DataError, match="no stack of layers"):
        find_stacks(SYSTEMS["recurrent"]())


def test_a_model_that_has_diverged_is_refused() -> None:
    model = SYSTEMS["transformer"]()
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, np.nan)
    with pytest.raises(Diverged, match="NaN outputs of layers"):
        draw(model, PAIRS)
