"""A toy task is learned from a fresh seed in seconds, and the run folder translates."""

import random
from pathlib import Path

from fusetk import system
from fusetk import train as train_module
from fusetk.data.corpus import Corpus
from fusetk.decoding.translate import Translator
from fusetk.recipe import load


def test_reversal_is_learned(toy: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    overrides = ["model.dropout=0.0", "training.validation={every_updates: 100, metric: accuracy}"]
    overrides += ["training.stages.0.end.updates=300", f"training.seed={seed}"]
    recipe = load(toy, overrides)
    train_module.train(recipe, tmp_path, "cpu", quiet=True)
    loaded = system.load_model(tmp_path)
    corpus = Corpus.open(Path(recipe.data.folder), "valid")
    found = Translator([loaded.model], loaded.pipeline, recipe.decoding).translate_ids(
        [corpus.source[i] for i in range(len(corpus))]
    )
    right = sum(list(best[0].ids) == corpus.target[i][:-1].tolist() for i, best in enumerate(found))
    assert right >= 0.5 * len(corpus), f"{right} of {len(corpus)} with seed {seed}"
