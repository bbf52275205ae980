"""The files of an experiment, and the text that its config reads."""

import glob
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fusetk.data import manifest
from fusetk.data.config import DataConfig
from fusetk.errors import ConfigError, DataError
from fusetk.files import digest
from fusetk.recipe import Recipe
from fusetk.runs import CONFIG


class Places(NamedTuple):
    """The files and folders of an experiment, all below one output folder.

    The rows of a paper in one folder of configs are a group: they share prepared text and
    references. Another config is a group of its own.
    """

    out: Path
    group: str
    name: str  # unique in the output folder

    @property
    def run(self) -> Path:
        """Run folder."""
        return self.out / f"run.{self.name}"

    @property
    def config(self) -> Path:
        """Config with all settings of the experiment, which its steps read."""
        return self.out / f"run.{self.name}.yaml"

    @property
    def usual_prepared(self) -> Path:
        """Prepared folder of the group, except for experiments with other settings of the text."""
        return self.out / f"data.{self.group}"

    def runs_of_all_seeds(self) -> list[Path]:
        """Return the run folders of the config, with this and other seeds."""
        name = self.run.name.rpartition(".seed")[0]
        folders = self.out.glob(f"{glob.escape(name)}.seed*")
        return sorted(path for path in folders if (path / CONFIG).is_file())

    def lock(self, folder: Path) -> Path:
        """Return the lock file of a folder of the experiment."""
        return self.out / f".{folder.name}.lock"

    def prepared(self, data: DataConfig) -> Path:
        """Return the folder of the prepared text.

        It is ``usual_prepared``, or a folder with a part of the settings' checksum in its name if
        ``usual_prepared`` was prepared with other settings.
        """
        folder = self.usual_prepared
        settings = text_settings(data)
        try:
            recorded = manifest.read(folder)["settings"]
            other = text_settings(DataConfig.model_validate({**recorded, "folder": str(folder)}))
        except (DataError, KeyError, ValueError):
            return folder
        if settings == other:
            return folder
        return self.out / f"{folder.name}.{digest(settings)[:8]}"


def places(config: Path, recipe: Recipe, out: Path | None) -> Places:
    """Return the places of a config's experiment.

    By default the output folder is ``work/PAPER_TASK`` for a row of a paper in a folder PAPER/TASK,
    and ``work/NAME`` for another config.
    """
    config = Path(os.path.abspath(config))  # without `..`
    task = config.parent.name
    name = f"{config.stem}.seed{recipe.training.seed}"
    if is_row(recipe):
        default = Path("work") / f"{config.parent.parent.name}_{task}"
        return Places(Path(os.path.abspath(out or default)), task, f"{task}.{name}")
    return Places(Path(os.path.abspath(out or Path("work") / config.stem)), config.stem, name)


def is_row(recipe: Recipe) -> bool:
    """Whether a recipe describes a row of a paper's table."""
    return recipe.paper is not None and recipe.paper.row is not None


def text_settings(data: DataConfig) -> dict[str, object]:
    """Return the settings of prepared text, without the folders of files."""
    settings = data.model_dump(mode="json", exclude={"folder"})
    settings["train"] = names(data.train)
    if isinstance(data.valid, list):
        settings["valid"] = names(data.valid)
    settings["test"] = {name: names(prefixes) for name, prefixes in data.test.items()}
    return settings


def names(prefixes: list[str]) -> list[str]:
    """Return the names of file prefixes without their folders."""
    return [Path(prefix).name for prefix in prefixes]


def _check_names(data: DataConfig, raw: Path) -> None:
    """Raise ConfigError if the texts of two prefixes would have the same name in ``raw``."""
    first: dict[str, str] = {}
    for use, prefix in prefixes_by_use(data):
        name = Path(prefix).name
        other = first.setdefault(name, prefix)
        if other != prefix:
            raise ConfigError(
                f"data.{use}: {other} and {prefix} would both be {raw / name}: "
                "give them different file names"
            )


def recipe_with_folders(recipe: Recipe, raw: Path, where: Places) -> Recipe:
    """Return the recipe with its text in ``raw`` and the prepared folder of the experiment.

    Sampling weights name a corpus by its file name, without the folder. Raises ConfigError if two
    texts have the same file name.
    """
    data = recipe.data
    _check_names(data, raw)

    def below(prefixes: list[str]) -> list[str]:
        return [str(raw.absolute() / name) for name in names(prefixes)]

    changes = {
        "folder": str(where.prepared(data)),
        "train": below(data.train),
        "valid": below(data.valid) if isinstance(data.valid, list) else data.valid,
        "test": {name: below(prefixes) for name, prefixes in data.test.items()},
    }
    stages = [
        stage.model_copy(
            update={"weights": {Path(name).name: weight for name, weight in stage.weights.items()}}
        )
        if stage.weights
        else stage
        for stage in recipe.training.stages
    ]
    return recipe.model_copy(
        update={
            "data": data.model_copy(update=changes),
            "training": recipe.training.model_copy(update={"stages": stages}),
        }
    )


def prefixes_by_use(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield each file prefix once, with its use: train, valid or test."""
    uses = {
        "train": data.train,
        "valid": data.valid if isinstance(data.valid, list) else [],
        "test": [prefix for prefixes in data.test.values() for prefix in prefixes],
    }
    seen: set[str] = set()
    for use, prefixes in uses.items():
        for prefix in prefixes:
            if prefix not in seen:
                seen.add(prefix)
                yield use, prefix


def _further_reference(prefix: str, language: str, number: int) -> Path | None:
    """Return the file ``PREFIX.LANGUAGEn`` or ``PREFIX.LANGUAGEn.gz``; None if both are missing."""
    for ending in ("", ".gz"):
        path = Path(f"{prefix}.{language}{number}{ending}")
        if path.exists():
            return path
    return None


def further_references(prefixes: list[str], language: str) -> Iterator[list[Path]]:
    """Yield the files of each further reference that all texts of a test set have."""
    for number in count(1):
        paths = [_further_reference(prefix, language, number) for prefix in prefixes]
        files = [path for path in paths if path]
        if len(files) < len(paths):
            return
        yield files
