"""The rows of the papers' tables train an update of each stage, with 1/32 of their sizes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fusetk import system
from fusetk.data.corpus import Corpus
from fusetk.data.sampler import update_size
from fusetk.files import digest
from fusetk.processes import ALONE
from fusetk.recipe import Recipe
from fusetk.training.gradients import BatchSplitter, GradientComputer
from fusetk.training.progress import Progress
from fusetk.training.stages import Stages
from fusetk.training.update import optimizer_step
from tests.helpers.rows import RECIPES, load, rows

FOLDERS = [
    path.relative_to(RECIPES).as_posix()
    for paper in ("mlrf", "rtal", "densenmt", "lwc", "dtmt")
    for path in sorted((RECIPES / paper).iterdir())
    if path.is_dir() and path.name != "systems"
]
SHARE = 32  # sizes are divided by this number
SMALLEST = 64  # smaller numbers remain: layers, heads, hops, kernels
TOKENS = 60  # largest batch of the reduced config
SENTENCES = 8


def reduce_sizes(value: Any) -> Any:
    """Divide each size in the values of a config."""
    if isinstance(value, dict):
        return {key: reduce_sizes(part) for key, part in value.items()}
    if isinstance(value, list):
        return [reduce_sizes(part) for part in value]
    is_size = isinstance(value, int) and value >= SMALLEST
    return value // SHARE if is_size else value


def reduced(row: Recipe) -> Recipe:
    """Return a row with small sizes of its model and of its batches, and at most two a update."""
    model = type(row.model).model_validate(reduce_sizes(row.model.model_dump(mode="json")))
    stages = []
    for stage in row.training.stages:
        largest = SENTENCES if stage.batch.unit == "sentences" else TOKENS
        size = min(stage.batch.size, largest)
        changes = {"size": size, "accumulate": min(stage.batch.accumulate, 2)}
        stages.append(stage.model_copy(update={"batch": stage.batch.model_copy(update=changes)}))
    training = row.training.model_copy(update={"stages": stages})
    return row.model_copy(update={"model": model, "training": training})


def distinct_systems() -> dict[str, Recipe]:
    """Return the rows that differ in their models or in their training, by the first one's name."""
    systems: dict[str, tuple[str, Recipe]] = {}
    for folder in FOLDERS:
        for name, row in rows(folder).items():
            small = reduced(row)
            values = [small.model.model_dump(mode="json"), small.training.model_dump(mode="json")]
            systems.setdefault(digest(values), (f"{folder}/{name}", small))
    return dict(systems.values())


SYSTEMS = distinct_systems()


@pytest.fixture(scope="module")
def corpus(toy: Path) -> Corpus:
    return Corpus.open(Path(load(toy).data.folder), "train")


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_row_trains_an_update_of_each_stage(name: str, corpus: Corpus) -> None:
    config = SYSTEMS[name].training
    torch.manual_seed(1)
    entries = 1 + int(max(corpus.source.ids.max(), corpus.target.ids.max()))
    model = system.build(SYSTEMS[name], entries, entries).train()
    stages = Stages(config, model, 8, corpus)
    gradients = GradientComputer(config, model, ALONE, BatchSplitter(False, print))
    progress = Progress()
    for number, stage in enumerate(config.stages):
        progress.stage = number
        indices = stages.updates(progress, corpus)[0]
        assert len(indices) == stage.batch.accumulate
        tokens = update_size(indices, corpus.source.lengths, corpus.target.lengths).target_tokens
        losses = gradients.compute(corpus, indices, tokens, number, 1.0)
        assert all(p.grad is not None for p in model.parameters())
        before = [p.detach().clone() for p in model.parameters()]
        rate = stages.schedule(progress).rate(1)
        stats = optimizer_step(model, stages.optimizer(progress), losses, rate, stage.clip)
        loss = stats.nll.item() / tokens
        assert 0 < stats.grad_norm < math.inf and 0 < loss < 3 * math.log(entries)
        changed = [not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)]
        assert sum(changed) > 0.9 * len(changed)
