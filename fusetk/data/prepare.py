"""Raw parallel text to memory-mapped ids: what ``fusetk prep`` does."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data import binarize, languages, manifest, preprocess
from fusetk.data.config import (
    BPE,
    NFC,
    DataConfig,
    Deduplicate,
    Every,
    Filter,
    Lowercase,
    NormalizePunctuation,
    Sample,
    Side,
    Step,
    Tokenize,
    Truecase,
    VocabularyConfig,
)
from fusetk.data.stages import Build, Results, Stage, opened
from fusetk.data.text import Pair, locate
from fusetk.errors import ConfigError, DataError
from fusetk.files import digest

__all__ = [
    "BPE",
    "NFC",
    "DataConfig",
    "Deduplicate",
    "Every",
    "Filter",
    "Lowercase",
    "Manifest",
    "NormalizePunctuation",
    "Sample",
    "Side",
    "Step",
    "Tokenize",
    "Truecase",
    "VocabularyConfig",
    "prepare",
]


class Manifest(NamedTuple):
    """What a prepared folder holds, as `manifest.json` says it, and which stages were made just now."""

    folder: Path
    data: Mapping[str, Any]
    made: list[str]

    @property
    def splits(self) -> Mapping[str, Any]:
        """By split: pairs in and out, dropped by reason, and per side what was counted."""
        splits: Mapping[str, Any] = self.data["splits"]
        return splits


def prepare(
    config: DataConfig,
    jobs: int = 1,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Manifest:
    """Make `config.folder`, or what of it is out of date; with `force` all of it.

    `report` is given one line for each change that was found, for each stage that is made, and for
    each doubt whether the steps are made for the language of the text. The folder is complete when and
    only when it has a manifest. Raises DataError for input that cannot be used.
    """
    folder = Path(config.folder)
    if config.source == config.target:
        raise ConfigError(
            f"data.source and data.target are both {config.source!r}: the files of the two sides would have one name"
        )
    texts = {
        name: [_pair(config, prefix) for prefix in prefixes]
        for name, prefixes in _prefixes(config).items()
    }
    with opened(folder):
        old = _known(folder, report)
        inputs = _inspect(texts, old.get("inputs", {}))
        for doubt in languages.doubts(
            {"source": config.source, "target": config.target},
            config.steps,
            [pair for pairs in texts.values() for pair in pairs],
        ):
            report(f"warning: {doubt}")
        build = Build(folder, jobs, report)
        stages_before = old.get("stages", {})
        for stage in plan(config, texts):
            build.run(stage, inputs, None if force else stages_before.get(stage.name))
        for name in stages_before:
            if name not in build.stages:
                report(f"{name}: no longer asked for, its files go")
        data = describe(config, inputs, build)
        if data != old:
            build.finish(data, stages_before)
        return Manifest(folder, data, build.made)


def _known(folder: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """The manifest of an earlier run, empty when there is none to be used."""
    try:
        return manifest.read(folder)
    except DataError as error:
        if (folder / manifest.NAME).exists():
            report(f"{error} (everything is made again now)")
        return {}


def _inspect(
    texts: Mapping[str, list[Pair]], known: Mapping[str, manifest.Record]
) -> dict[str, manifest.Record]:
    """Look at all inputs before any work: readable, UTF-8, equally many lines on both sides."""
    inputs: dict[str, manifest.Record] = {}
    for pairs in texts.values():
        for path in dict.fromkeys(path for pair in pairs for path in pair):
            inputs[str(path)] = manifest.inspect(path, known.get(str(path)))
        manifest.check_pairs(pairs, inputs)
    return inputs


def _prefixes(config: DataConfig) -> dict[str, list[str]]:
    """The file prefixes of each split that is read from files."""
    found = {"train": config.train}
    if isinstance(config.valid, list):
        if not config.valid:
            raise ConfigError(
                "data.valid is an empty list; give file prefixes, `every: 23`, or `sample: 2000`"
            )
        found["valid"] = config.valid
    for name, prefixes in config.test.items():
        if not prefixes or not name or any(character in "/\\\0\n" for character in name):
            raise ConfigError(
                f"data.test.{name}: a test set has a plain name and a list of at least one file prefix"
            )
        found[f"test.{name}"] = prefixes
    return found


def text_files(config: DataConfig, split: str) -> list[Pair]:
    """The files of a split; none where it is taken from the training text or a file is missing."""
    try:
        return [_pair(config, prefix) for prefix in _prefixes(config).get(split, [])]
    except DataError:
        return []


def _pair(config: DataConfig, prefix: str) -> Pair:
    return Pair(locate(prefix, config.source), locate(prefix, config.target))


def plan(config: DataConfig, texts: Mapping[str, list[Pair]]) -> list[Stage]:
    """The stages in an order in which each comes after what it needs."""
    versions = manifest.versions()
    steps = [step.model_dump(mode="json") for step in config.steps]
    sides = {"source": config.source, "target": config.target}
    with_moses = any(isinstance(step, Tokenize | NormalizePunctuation) for step in config.steps)
    tools = {"sacremoses": versions["sacremoses"]} if with_moses else {}
    split = None if isinstance(config.valid, list) else config.valid.model_dump(mode="json")
    settings = {**sides, "steps": steps, "valid": split, **tools}
    found = [
        Stage(
            "words.train",
            settings,
            texts["train"],
            [],
            lambda build: preprocess.train_words(build, config, texts["train"]),
        )
    ]
    options = config.bpe
    if options:
        learned = {
            **options.model_dump(mode="json", exclude={"max_subwords"}),
            "subword-nmt": versions["subword-nmt"],
        }
        found.append(
            Stage(
                "bpe",
                {"bpe": learned},
                [],
                ["words.train"],
                lambda build: binarize.learn_bpe(build, config, options),
            )
        )
    limit = {"bpe": {"max_subwords": options.max_subwords}} if options else {}
    chosen = {**limit, "vocabulary": config.vocabulary.model_dump(mode="json")}
    found.append(
        Stage(
            "vocabulary",
            chosen,
            [],
            ["bpe" if options else "words.train"],
            lambda build: binarize.make_vocabularies(build, config),
        )
    )
    found.append(
        Stage("ids.train", {}, [], ["vocabulary"], partial(_ids, config=config, split="train"))
    )
    cased = ["words.train"] if any(isinstance(step, Truecase) for step in config.steps) else []
    inference = [step for step in steps if step["step"] not in ("filter", "deduplicate")]
    for name, pairs in texts.items():
        if name != "train":
            run = partial(_held_out, config=config, split=name, pairs=pairs)
            found.append(
                Stage(f"words.{name}", {**sides, "steps": inference, **tools}, pairs, cased, run)
            )
            found.append(
                Stage(
                    f"ids.{name}",
                    {},
                    [],
                    [f"words.{name}", "vocabulary"],
                    partial(_ids, config=config, split=name),
                )
            )
    if "valid" not in texts:
        found.append(
            Stage("ids.valid", {}, [], ["vocabulary"], partial(_ids, config=config, split="valid"))
        )
    return found


def _ids(build: Build, config: DataConfig, split: str) -> Results:
    return binarize.write_ids(build, config, split)


def _held_out(build: Build, config: DataConfig, split: str, pairs: list[Pair]) -> Results:
    return preprocess.held_out_words(build, config, split, pairs)


def describe(
    config: DataConfig, inputs: Mapping[str, manifest.Record], build: Build
) -> dict[str, Any]:
    """The contents of `manifest.json`."""
    results = {name: stage["results"] for name, stage in build.stages.items()}
    splits = {}
    order = [
        "train",
        "valid",
        *(name.removeprefix("ids.") for name in results if name.startswith("ids.test.")),
    ]
    for split in order:
        ids = results[f"ids.{split}"]
        read = results.get(f"words.{split}", {"dropped": {}})
        pairs_out = ids["source"]["sentences"]
        splits[split] = {
            "pairs_in": read.get("pairs_in", pairs_out),
            "pairs_out": pairs_out,
            "dropped": {**read["dropped"], **ids["dropped"]},
            **({"to_valid": read["to_valid"]} if read.get("to_valid") else {}),
            **({"corpora": _corpora(config, ids)} if split == "train" else {}),
            "source": ids["source"],
            "target": ids["target"],
        }
    for split, counts in splits.items():
        assert counts["pairs_in"] == counts["pairs_out"] + sum(
            counts["dropped"].values()
        ) + counts.get("to_valid", 0), split
    assert sum(part["pairs"] for part in splits["train"]["corpora"]) in (
        0,
        splits["train"]["pairs_out"],
    )
    made = [
        [name, stage["key"], {file: out["sha256"] for file, out in stage["outputs"].items()}]
        for name, stage in build.stages.items()
    ]
    return {
        "format": manifest.FORMAT,
        "fingerprint": digest(made),
        "languages": {"source": config.source, "target": config.target},
        "versions": manifest.versions(),
        "settings": config.model_dump(mode="json", exclude={"folder"}),
        "vocabulary": results["vocabulary"],
        "bpe": results.get("bpe"),
        "splits": splits,
        "inputs": dict(inputs),
        "stages": build.stages,
    }


def _corpora(config: DataConfig, ids: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How many training pairs came from each prefix, in the order in which they stand; nothing where an earlier version did not note it."""
    counts = ids.get("corpora") or ([ids["source"]["sentences"]] if len(config.train) == 1 else [])
    if not counts:
        return []
    return [
        {"prefix": prefix, "pairs": pairs}
        for prefix, pairs in zip(config.train, counts, strict=True)
    ]
