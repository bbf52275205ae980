"""recipes/successors: every system at three depths, its parameters, and its row in the table."""

from pathlib import Path

import pytest
import torch

from fusetk import recipe, system
from fusetk.models.connect import CONNECTIONS
from fusetk.models.residual import RESIDUALS
from fusetk.recipe import Recipe

FOLDER = Path(__file__).parent.parent / "recipes" / "successors"
DEPTHS = (6, 12, 24)
NAMES = sorted(
    {path.stem.rpartition("_")[0] for path in (FOLDER / "multi30k").glob("*l.yaml")} - {"base"}
)


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    return {
        f"{name}_{depth}l": recipe.load(FOLDER / "multi30k" / f"{name}_{depth}l.yaml")
        for name in NAMES
        for depth in DEPTHS
    }


def test_every_system_has_a_config_at_each_depth(recipes: dict[str, Recipe]) -> None:
    systems = {path.stem for path in (FOLDER / "systems").glob("*.yaml")}
    assert set(NAMES) == systems | {"attention_residual_blocks"}
    for name, loaded in recipes.items():
        depth = int(name.rpartition("_")[2][:-1])
        model = loaded.model
        assert (model.encoder.layers, model.decoder.layers, model.width) == (depth, depth, 128)
        assert loaded.paper is not None and loaded.paper.row.endswith(f", {depth}+{depth}")
    lines = [loaded.paper.line for loaded in recipes.values()]
    assert len(set(lines)) == len(recipes)


def test_a_saved_config_is_the_same_config(recipes: dict[str, Recipe]) -> None:
    """A run saves its config with all defaults."""
    for loaded in recipes.values():
        saved = loaded.model.model_dump(mode="json")
        assert type(loaded.model).model_validate(saved) == loaded.model


def test_every_connection_has_a_system(recipes: dict[str, Recipe]) -> None:
    models = [loaded.model for loaded in recipes.values()]
    assert {model.decoder.residual.kind for model in models} == set(RESIDUALS)
    assert {model.decoder.connect.kind for model in models} == set(CONNECTIONS) - {"dense"}
    assert {model.norm for model in models} == {"post", "pre", "none"}


def test_the_readme_has_a_paragraph_for_each_system() -> None:
    text = (FOLDER / "multi30k" / "README.md").read_text(encoding="utf-8")
    assert not [name for name in NAMES if f"`{name}`" not in text]


def test_systems_differ_by_their_connections_only(recipes: dict[str, Recipe]) -> None:
    """The parameters that a system adds to the plain model of its depth: a row of the README."""

    def count(name: str) -> int:
        with torch.device("meta"):
            model = system.build(recipes[f"{name}_6l"], 7060, 5200)
        return sum(p.numel() for p in model.parameters())

    plain = count("pre_norm")
    d, sublayers = 128, 6 * 2 + 6 * 3
    assert count("hyper_static") - plain == sublayers * 4 * 6
    assert count("hyper") - plain == sublayers * (d * 6 + 4 * 6 + 2)
    assert count("manifold_hyper") - plain == sublayers * (4 * d * 24 + 24 + 3)
    assert count("manifold_hyper_lite") - plain == sublayers * (4 * d * 32 + 32 + 3)
    assert count("attention_residual") - plain == 2 * d * (sublayers + 2)
    assert count("depth_weighted") - plain == 2 * (6 * 9 // 2)
    # Ten of twelve self-attentions have no map of values.
    assert plain - count("shared_values") == 10 * (d * d + d)
    # The sources' norms of pre-norm models are one for each decoder layer, not one.
    norms = (6 - 1 + 7) * 2 * d
    assert count("transparent") - plain == 7 * 6 + norms
    # GTrans has a norm on each side, as post-norm models have no other at the end.
    assert count("groups") - count("post_norm") == 2 * (3 + 2 * d)
