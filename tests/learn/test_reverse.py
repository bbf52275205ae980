"""A model learns a toy task, and its run folder translates."""

from pathlib import Path

from fusetk import system
from fusetk import train as train_module
from fusetk.data.corpus import Corpus
from fusetk.decoding.translate import Translator
from fusetk.recipe import load


def test_reversal_is_learned(toy: Path, tmp_path: Path) -> None:
    overrides = ["model.dropout=0.0", "training.validation={every_updates: 100, metric: accuracy}"]
    recipe = load(toy, [*overrides, "training.stages.0.end.updates=300"])
    train_module.train(recipe, tmp_path, "cpu", quiet=True)
    loaded = system.load_model(tmp_path)
    corpus = Corpus.open(Path(recipe.data.folder), "valid")
    translations = Translator([loaded.model], loaded.pipeline, recipe.decoding).translate_ids(
        [corpus.source[i] for i in range(len(corpus))]
    )
    correct = sum(
        list(best[0].ids) == corpus.target[i][:-1].tolist() for i, best in enumerate(translations)
    )
    assert correct >= 0.5 * len(corpus), f"{correct} of {len(corpus)}"
