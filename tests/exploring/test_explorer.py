"""The explorer's numbers are those of the search, of forced decoding and of plot-attention."""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusetk import system, trace
from fusetk.data.bpe import BPE
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.vocab import EOS
from fusetk.decoding.requests import Request
from fusetk.errors import DataError
from fusetk.exploring.explorer import Explorer, Heatmap, Search, views
from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.models import MODELS
from fusetk.models.description import summary
from fusetk.plotting.attention import TokenPair
from fusetk.plotting.pages import panel_function
from tests.contracts.systems import BACKBONES, build, sides
from tests.exploring.runs import LARGEST, explorer

TEXT = "eins zwei drei"


@pytest.fixture(scope="module")
def plain(runs: list[Path]) -> Explorer:
    return explorer(runs[0])


@pytest.fixture(scope="module")
def fused(runs: list[Path]) -> Explorer:
    return explorer(runs[1])


def test_translations_are_those_of_the_search(fused: Explorer, runs: list[Path]) -> None:
    loaded = system.load(runs[1], "cpu")
    for beam in (None, 3):
        answer = fused.translate(Search(beam), TEXT)
        width = beam or 2  # the beam of the config
        [expected] = loaded.n_best([TEXT], beam=width, n_best=width)
        assert [row["text"] for row in answer["translations"]] == [row.text for row in expected]
        for row, other in zip(answer["translations"], expected, strict=True):
            assert row["tokens"] == other.tokens
            assert row["score"] == pytest.approx(other.score, abs=1e-5)
            assert row["normalized"] == pytest.approx(other.normalized, abs=1e-5)
            total = sum(step["score"] for step in row["steps"])
            assert total == pytest.approx(other.score, abs=1e-4)
    assert answer["source"] == TEXT.split() and answer["unknown"] == []
    assert answer["given"] is None and answer["prefix"]["tokens"] == []


def test_a_probable_token_can_be_forced(fused: Explorer, runs: list[Path]) -> None:
    row = fused.translate(Search(3, "", "DREI ZWEI EINS"), TEXT)["given"]
    token, score = next(
        (best["token"], best["score"])
        for best in row["steps"][1]["best"]
        if best["token"] not in ("ZWEI", "</s>", "<unk>")
    )
    prefix = (row["tokens"][0], token)
    answer = fused.translate(Search(3, prefix), TEXT)
    assert answer["prefix"] == {"text": " ".join(prefix), "tokens": [*prefix], "unknown": []}
    for other in answer["translations"]:
        assert other["tokens"][:2] == [*prefix]
        assert other["steps"][1]["score"] == pytest.approx(score, abs=1e-5)
    # A prefix as text, and the search of `fusetk decode --prefix`.
    request = Request(TEXT, prefix=" ".join(prefix))
    [expected] = system.load(runs[1], "cpu").n_best([request], beam=3, n_best=3)
    typed = fused.translate(Search(3, " ".join(prefix)), TEXT)
    for rows in (answer, typed):
        assert [row["text"] for row in rows["translations"]] == [row.text for row in expected]


def test_the_text_of_a_prefix_has_complete_words(
    fused: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = BPE(["#version: 0.2"])
    pipeline = fused.translator.pipeline
    monkeypatch.setattr(pipeline, "bpe", {"source": codes, "target": codes})
    for tokens, text in (
        (("DREI", "ZW@@", "E@@"), "DREI"),
        (("DREI", "ZW@@", "EI"), "DREI ZWEI"),
        (("ZW@@",), ""),
    ):
        prefix = fused.translate(Search(2, tokens), TEXT)["prefix"]
        assert prefix["text"] == text and prefix["tokens"] == [*tokens]


def test_a_given_translation_is_scored(fused: Explorer, runs: list[Path]) -> None:
    row = fused.translate(Search(2, "", " DREI ZWEI "), TEXT)["given"]
    [expected] = system.load(runs[1], "cpu").score([TEXT], ["DREI ZWEI"])
    assert row["text"] == "DREI ZWEI" and row["tokens"] == ["DREI", "ZWEI"]
    assert row["score"] == pytest.approx(expected, abs=1e-5)
    assert row["normalized"] == pytest.approx(expected / 3, abs=1e-5)


def test_unknown_words_are_named(plain: Explorer) -> None:
    answer = plain.translate(Search(1, "neu ZWEI"), "eins neu neu anders")
    assert answer["unknown"] == ["neu", "anders"] and answer["prefix"]["unknown"] == ["neu"]
    assert answer["translations"][0]["tokens"][:2] == ["<unk>", "ZWEI"]


def test_views_are_those_that_the_model_has(plain: Explorer, fused: Explorer) -> None:
    whats = {
        name: [view.what for view in run.views]
        for name, run in (("plain", plain), ("fused", fused))
    }
    attention = ["cross", "encoder-self", "decoder-self"]
    assert whats == {"plain": attention, "fused": ["fuse", "connect", *attention]}
    assert [view.heads for view in fused.views] == [2, 0, 2, 2, 2]
    assert [view.layers for view in fused.views] == [[], [], [1, 2], [1, 2], [1, 2]]
    description = fused.describe()
    assert description["model"] == (
        "transformer; encoder of 2 layers, connect linear; decoder of 2 layers, fuse attention"
    )
    assert description["vocabulary"] == plain.describe()["vocabulary"]


def test_runs_with_other_steps_do_not_share_tokens(runs: list[Path]) -> None:
    loaded = system.load_model(runs[0], "cpu")
    with_step = copy.copy(loaded.pipeline)
    with_step.steps = [*with_step.steps, Lowercase(step="lowercase")]
    other = Explorer("other", loaded._replace(pipeline=with_step), LARGEST)
    assert other.describe()["vocabulary"] != explorer(runs[0]).describe()["vocabulary"]


@pytest.mark.parametrize("kind", BACKBONES)
def test_every_backbone_has_views(kind: str) -> None:
    options: dict[str, Any] = {side: {"fuse": {"kind": "average"}} for side in sides(kind)}
    options[sides(kind)[-1]]["connect"] = {"kind": "linear"}
    if kind == "recurrent":
        options = {}
    model = build(kind, **options)
    whats = [view.what for view in views(model)]
    assert {"cross", "mixed"} & set(whats)
    assert options == {} or whats[:2] == ["fuse", "connect"]
    tokens = TokenPair(["a", "b", "c"], ["d", "e"])
    for view in views(model):
        for layer in (None, *view.layers, *range(1, len(view.readers) + 1)):
            panels = panel_function(model, view.what, layer)(([4, 5, 6, EOS], [5, 6]), tokens)
            assert panels and all(np.isfinite(panel.matrix).any() for panel in panels)
    config = MODELS[kind].Config.model_validate({**BACKBONES[kind].sizes, "kind": kind})
    depth = "depth 1" if kind == "recurrent" else "2 layers"
    assert summary(config).startswith(kind + ";") and depth in summary(config)


class Readers(LayerFusion):
    """A mean of three hops. `hops` is a list of modules; in `fuse: attention` it is a number."""

    def __init__(self, config: LayerFusionConfig, widths: Sequence[int], width: int, name: str):
        super().__init__(config, widths, width, name)
        self.hops = nn.ModuleList(nn.Linear(width, self.num_fused) for _ in range(3))

    def fuse(self, layers: list[Tensor]) -> Tensor:
        weights = torch.stack([hop(layers[-1]).softmax(-1) for hop in self.hops], -2)
        trace.record(f"{self.name}.hops", weights)
        return (weights.mean(-2).unsqueeze(-1) * torch.stack(layers, -2)).sum(-2)


def test_the_hops_of_an_outside_fusion_are_those_that_it_records() -> None:
    model = build("transformer", encoder={"fuse": {"kind": f"{__name__}:Readers"}})
    view = views(model)[0]
    assert (view.what, view.heads) == ("fuse", 3)


def test_heatmaps_are_those_of_plot_attention(fused: Explorer) -> None:
    tokens = ("DREI", "EINS")
    encode = fused.translator.encode
    pair = ([*encode("source", TEXT), EOS], encode("target", " ".join(tokens)))
    for view in fused.views:
        heads: list[str | int | None] = [None, *(["all", "mean", 1] if view.heads else [])]
        for layer in (None, *view.layers):
            for head in heads:
                answer = fused.heatmaps(Heatmap(tokens, view.what, layer, head), TEXT)
                draw = panel_function(fused.model, view.what, layer, head)
                expected = draw(pair, TokenPair(TEXT.split(), tokens))
                assert [panel["name"] for panel in answer["panels"]] == [p.name for p in expected]
                for panel, other in zip(answer["panels"], expected, strict=True):
                    matrix = np.array(panel["matrix"], dtype=float)
                    np.testing.assert_array_equal(matrix.astype("f4"), other.matrix)
                    assert panel["measure"] in answer["scales"]


def test_input_that_cannot_be_explored(plain: Explorer, fused: Explorer) -> None:
    tokens = ("DREI",) * 40
    for act, reason in (
        (lambda: plain.translate(Search(), " "), "the sentence is empty"),
        (lambda: plain.translate(Search(), "eins " * 1025), "has 1025 tokens, .* at most 1024"),
        (lambda: fused.translate(Search(), "eins " * 60), "has 60 tokens, .* at most 59"),
        (lambda: fused.translate(Search(None, ("A",) * 60), TEXT), "the prefix has 60 tokens"),
        (lambda: fused.translate(Search(None, "", "A " * 60), TEXT), "target sentence of 60"),
        (lambda: fused.heatmaps(Heatmap(tokens + tokens, "cross"), TEXT), "of 80 tokens is too"),
        (lambda: plain.heatmaps(Heatmap(tokens, "fuse"), TEXT), "no heatmaps 'fuse'; it has cross"),
        (lambda: plain.heatmaps(Heatmap(tokens, "cross", 2), TEXT), "no layer 2: choose 1"),
        (lambda: plain.heatmaps(Heatmap(tokens, "cross", 1, 3), TEXT), "no head 3: choose 1 to 2"),
        (lambda: fused.heatmaps(Heatmap(tokens, "connect", 1), TEXT), "no layer 1: omit it"),
        (
            lambda: plain.heatmaps(Heatmap(tokens, "decoder-self", None, "all"), TEXT),
            "have 3,362 cells, but at most 2,000 are drawn: choose one layer or one head",
        ),
    ):
        with pytest.raises(DataError, match=reason):
            act()
    assert plain.heatmaps(Heatmap(tokens, "decoder-self", 1, 2), TEXT)["panels"]


def test_probabilities_of_a_step_are_probabilities(plain: Explorer) -> None:
    for row in plain.translate(Search(4), TEXT)["translations"]:
        for step in row["steps"]:
            assert 0 < sum(math.exp(best["score"]) for best in step["best"]) <= 1 + 1e-5
