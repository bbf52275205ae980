"""The raw text of an experiment: where it is missing, and how it is made."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from fusetk.data.text import locate
from fusetk.datasets import table
from fusetk.datasets.make import ARCHIVES, check_origins, make
from fusetk.errors import DataError
from fusetk.experiment.places import prefixes_by_use
from fusetk.papers import PaperConfig
from fusetk.recipe import Recipe


def dataset_to_make(recipe: Recipe) -> str | None:
    """Return the data set that ``provide_raw_text`` can make for a recipe; None if there is none.

    It cannot make a data set that needs further steps of the user.
    """
    paper = recipe.paper
    return None if paper is None or paper.dataset_note else paper.dataset


def provide_raw_text(
    recipe: Recipe, raw: Path, makes: bool, any_data: bool, say: Callable[[str], None]
) -> None:
    """Check that the folder ``raw`` has all texts of a recipe whose paths are in it.

    With ``makes``, make the missing texts as `fusetk dataset` does. Raises DataError if texts are
    missing and are not made; the error names the command that makes them. Raises DataError if a
    text is that of another data set.
    """
    missing = missing_texts(recipe)
    name = dataset_to_make(recipe)
    if name and (makes or raw.is_dir()):
        names = [Path(prefix).name for _, prefix in prefixes_by_use(recipe.data)]
        dataset = table.read(name)
        texts = [text for text in dataset.texts if text.name in names]
        check_origins(dataset.model_copy(update={"texts": texts}), raw)
        if makes and missing:
            make(table.read(name, names), raw, raw / ARCHIVES, True, say, any_data)
    if missing := missing_texts(recipe):
        reason = _first(missing)
        if not raw.is_dir():
            what = "this is not a folder" if raw.exists() else "the folder does not exist"
            reason = f"--raw {raw}: {what}"
        raise DataError(f"{reason}: {_advice(recipe.paper, raw, makes)}")


def missing_texts(recipe: Recipe) -> list[str]:
    """Return a sentence for each missing file of the raw text.

    Raises DataError if a file exists plain and as .gz.
    """
    data = recipe.data
    sentences = []
    for _, prefix in prefixes_by_use(data):
        for language in (data.source, data.target):
            names = [Path(f"{prefix}.{language}{ending}") for ending in ("", ".gz")]
            if any(name.exists() for name in names):
                locate(prefix, language)
            else:
                sentences.append(f"neither {names[0]} nor {names[1].name} exists")
    return sentences


def _first(sentences: Sequence[str]) -> str:
    others = len(sentences) - 1
    return f"{sentences[0]} (and {others} more)" if others else sentences[0]


def _advice(paper: PaperConfig | None, raw: Path, makes: bool) -> str:
    if paper is None or paper.dataset is None:
        return "put the text there" + (
            ", since the config names no data set (`paper.dataset`)" if makes else ""
        )
    command = f"`fusetk dataset {paper.dataset} --raw {shlex.quote(str(raw))}`"
    if paper.dataset_note:
        return f"run {command} first, then {paper.dataset_note}"
    return f"run {command} first, or add --dataset"
