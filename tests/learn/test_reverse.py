"""A toy task is learned from a fresh seed in seconds, and the run folder translates."""

import random
from pathlib import Path

from fusetk import run as runs
from fusetk.data.corpus import Corpus
from fusetk.decoding.translate import Translator
from fusetk.recipe import load


def test_reversal_is_learned(toy: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    overrides = ["model.dropout=0.0", "training.validation={every_updates: 100, metric: accuracy}"]
    overrides += ["training.stages.0.end.updates=300", f"training.seed={seed}"]
    recipe = load(toy, overrides)
    runs.train(recipe, tmp_path, "cpu", quiet=True)
    loaded = runs.load(tmp_path)
    corpus = Corpus.open(Path(recipe.data.folder), "valid")
    found = Translator([loaded.model], loaded.pipeline, recipe.decoding).translate_ids([corpus.source[i] for i in range(len(corpus))])
    right = sum(list(best[0].ids) == corpus.target[i][:-1].tolist() for i, best in enumerate(found))
    assert right >= 0.5 * len(corpus), f"{right} of {len(corpus)} with seed {seed}"
