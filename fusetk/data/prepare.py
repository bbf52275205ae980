"""Conversion of raw parallel text to memory-mapped ids, for ``fusetk prep``."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data import binarize, language_warnings, manifest, preprocess, subword_warnings
from fusetk.data.config import BPEConfig, DataConfig, VocabularyConfig
from fusetk.data.parallel import Workers
from fusetk.data.pipeline import SIDES
from fusetk.data.stages import Build, Stage, opened
from fusetk.data.steps.base import LearnedStep, LineStep, PrepStep
from fusetk.data.text import FilePair, locate, open_bytes
from fusetk.data.vocab import MANY_UNKNOWN, mapping_ending
from fusetk.errors import ConfigError, DataError, is_own
from fusetk.files import checksum, code_checksums, digest

DROPOUT_KEYS = {"dropout", "segmentations", "seed"}  # keys of `data.bpe` that change only ids


class PreparedFolder(NamedTuple):
    """The result of a preparation."""

    folder: Path
    data: Mapping[str, Any]  # the contents of `manifest.json`
    made: list[str]  # the stages that were made now

    @property
    def splits(self) -> Mapping[str, Any]:
        """For each split: pairs in and out, dropped pairs by reason, and counts for each side.

        The training split also has the tokens of the pairs with too many subwords, if there are
        such pairs, and the counts of its segmentations if they differ by BPE dropout.
        """
        splits: Mapping[str, Any] = self.data["splits"]
        return splits


def prepare(
    config: DataConfig,
    jobs: int = 1,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
    validate: Callable[[], object] = lambda: None,
) -> PreparedFolder:
    """Make the stages of `config.folder` that are out of date; with `force` all stages.

    Calls `validate` before the first of them: it can reject the other sections of the config. Calls
    `report` with one line for each change, each stage that is made in a folder with earlier stages,
    and each warning: a language or a text that the steps do not support, a text of subwords, equal
    texts, or many unknown tokens. The folder is complete if and only if it has a manifest. Raises
    ConfigError or DataError for a config or input that cannot be used.
    """
    folder = Path(config.folder)
    if config.source == config.target:
        raise ConfigError(
            f"data.source and data.target are both {config.source!r}, "
            "so the files of both sides would have the same names; give each side its own suffix"
        )
    texts = {
        name: [_pair(config, prefix) for prefix in prefixes]
        for name, prefixes in _prefixes(config).items()
    }
    _check_inputs_are_outside(config, [pair for pairs in texts.values() for pair in pairs])
    with opened(folder), closing(Workers(jobs)) as workers:
        old = _read_manifest(folder, report)
        further = further_references(config)
        inputs = _inspect({**texts, "further": further}, old.get("inputs", {}))
        warnings: list[str] | None = old.get("warnings")

        def warn(lines: list[str]) -> list[str]:
            for line in lines:
                report(f"warning: {line}")
            return lines

        def before() -> None:
            nonlocal warnings
            validate()
            warnings = warn(_warnings(config, texts, inputs))

        old_stages = old.get("stages", {})
        build = Build(folder, workers, report, before, is_first=not old_stages)
        stages = plan(config, texts, further)
        build.remove_unusable(stages, inputs, force)
        for stage in stages:
            build.run(stage, inputs, old_stages.get(stage.name), force)
        for name in old_stages:
            if name not in build.stages:
                report(f"{name}: no longer needed, its files are deleted")
        if not build.made:
            same_stages = old_stages.keys() == build.stages.keys()
            if warnings is None or not same_stages or old["inputs"].keys() != inputs.keys():
                warnings = _warnings(config, texts, inputs)
            warn(warnings)
        data = {**describe(config, inputs, build), "warnings": warnings}
        warn(_unknown_tokens(data["splits"]))
        if data != old:
            build.finish(data, old_stages)
        return PreparedFolder(folder, data, build.made)


def _read_manifest(folder: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the manifest of an earlier run; empty if it is missing or cannot be used."""
    try:
        return manifest.read(folder)
    except DataError as error:
        if (folder / manifest.NAME).exists():
            report(f"{error} (all stages are made again now)")
        return {}


def _inspect(
    texts: Mapping[str, list[FilePair]], known: Mapping[str, manifest.Record]
) -> dict[str, manifest.Record]:
    """Check all inputs before any work: readable, UTF-8, equal numbers of lines on both sides."""
    inputs: dict[str, manifest.Record] = {}
    for pairs in texts.values():
        for path in dict.fromkeys(path for pair in pairs for path in pair):
            inputs[str(path)] = manifest.inspect(path, known.get(str(path)))
        manifest.check_pairs(pairs, inputs)
    return inputs


def _warnings(
    config: DataConfig, texts: Mapping[str, list[FilePair]], inputs: Mapping[str, manifest.Record]
) -> list[str]:
    """Return warnings about unsupported languages and texts, texts of subwords, and equal texts."""
    languages = preprocess.languages_by_side(config)
    pairs = [pair for pairs in texts.values() for pair in pairs]
    return [
        *language_warnings.warnings(languages, config.steps, pairs),
        *subword_warnings.warnings(dict.fromkeys(path for pair in pairs for path in pair)),
        *manifest.equal_texts(texts, inputs),
    ]


def _unknown_tokens(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return warnings about training and validation text with many unknown tokens."""
    return [
        f"{100 * counts['unknown'] / counts['tokens']:.0f} % of the {side} tokens of data.{split} "
        f"are not in the {side} vocabulary; check the text, data.bpe and data.vocabulary"
        for split in ("train", "valid")
        for side, counts in ((side, splits[split][side]) for side in SIDES)
        if counts["unknown"] > MANY_UNKNOWN * counts["tokens"]
    ]


def _check_inputs_are_outside(config: DataConfig, pairs: Sequence[FilePair]) -> None:
    """Raise ConfigError if an input lies in `config.folder`, where its stages would replace it."""
    folder = Path(config.folder).resolve()
    vocabulary = config.vocabulary
    codes = config.bpe.codes if config.bpe else None
    files = [*(codes or ()), vocabulary.source, vocabulary.target]
    for path in [*(path for pair in pairs for path in pair), *map(Path, filter(None, files))]:
        if folder in path.resolve().parents:
            raise ConfigError(
                f"{path} is in data.folder {config.folder}, where prep may replace it: choose "
                "another data.folder, or move the file"
            )


def _prefixes(config: DataConfig) -> dict[str, list[str]]:
    """Return the file prefixes of each split that is read from files."""
    prefixes_of = {"train": config.train}
    if isinstance(config.valid, list):
        if not config.valid:
            raise ConfigError(
                "data.valid is an empty list; give file prefixes, `every: 23`, or `sample: 2000`"
            )
        prefixes_of["valid"] = config.valid
    for name, prefixes in config.test.items():
        if not name.strip() or not name.isprintable() or "/" in name or "\\" in name:
            raise ConfigError(
                f"data.test: {name!r} cannot be the name of a test set: give a name of printable "
                "characters that has no slash and is not blank"
            )
        if not prefixes:
            raise ConfigError(f"data.test.{name} is an empty list; give at least one file prefix")
        prefixes_of[f"test.{name}"] = prefixes
    return prefixes_of


def text_files(config: DataConfig, split: str) -> list[Path]:
    """Return the files of a split without duplicates. The names have no `.gz`.

    They include further references of the validation text. The list is empty if the split is a part
    of the training text.
    """
    prefixes = _prefixes(config).get(split, [])
    suffixes = (config.source, config.target)
    names = [f"{prefix}.{suffix}" for prefix in prefixes for suffix in suffixes]
    if split == "valid":
        numbers = range(1, config.valid_references)
        names += [f"{prefix}.{config.target}{number}" for number in numbers for prefix in prefixes]
    return list(dict.fromkeys(map(Path, names)))


def _pair(config: DataConfig, prefix: str) -> FilePair:
    return FilePair(locate(prefix, config.source), locate(prefix, config.target))


def further_references(config: DataConfig) -> list[FilePair]:
    """Return the source and the file of each further reference of the validation text.

    The files of the second reference of all prefixes come first. Raises DataError if a file is
    missing.
    """
    prefixes = config.valid if isinstance(config.valid, list) else []
    return [
        FilePair(locate(prefix, config.source), locate(prefix, f"{config.target}{number}"))
        for number in range(1, config.valid_references)
        for prefix in prefixes
    ]


def plan(
    config: DataConfig, texts: Mapping[str, list[FilePair]], further: Sequence[FilePair]
) -> list[Stage]:
    """Return the stages; each stage follows the stages that it needs.

    ``further`` are the further references of the validation text.
    """
    train_words = _train_words(config, texts["train"])
    held_out = [name for name in texts if name != "train"]
    held_out_words = [
        _held_out_words(config, name, texts[name], further if name == "valid" else ())
        for name in held_out
    ]
    # Errors in the short texts should come before the work on the long one.
    needs_model = any(isinstance(step, LearnedStep) for step in config.steps)
    words = [train_words, *held_out_words] if needs_model else [*held_out_words, train_words]
    ids = [_ids(config, name, [f"words.{name}", "vocabulary"]) for name in held_out]
    if "valid" not in texts:
        ids.append(_ids(config, "valid", ["vocabulary"]))
    return [
        *words,
        *([_bpe(config, config.bpe)] if config.bpe else []),
        _vocabulary(config),
        _ids(config, "train", ["vocabulary"]),
        *ids,
    ]


def _train_words(config: DataConfig, pairs: list[FilePair]) -> Stage:
    split = None if isinstance(config.valid, list) else config.valid.model_dump(mode="json")
    settings = {
        **_step_settings(config, config.steps),
        "valid": split,
        **_versions(config.steps),
    }
    return Stage(
        "words.train",
        settings,
        pairs,
        [],
        lambda build: preprocess.train_words(build, config, pairs),
    )


def _held_out_words(
    config: DataConfig, split: str, pairs: list[FilePair], further: Sequence[FilePair]
) -> Stage:
    steps = [step for step in config.steps if isinstance(step, LineStep)]
    has_model = any(isinstance(step, LearnedStep) for step in steps)
    references = {"references": config.valid_references} if further else {}
    return Stage(
        f"words.{split}",
        {**_step_settings(config, steps), **_versions(steps), **references},
        [*pairs, *further],
        ["words.train"] if has_model else [],
        lambda build: preprocess.held_out_words(build, config, split, pairs, further),
    )


def _bpe(config: DataConfig, options: BPEConfig) -> Stage:
    settings = {
        **bpe_settings(options),
        **manifest.package_versions(["subword-nmt"]),
    }
    return Stage(
        "bpe",
        {"bpe": settings},
        [],
        ["words.train"],
        lambda build: binarize.learn_bpe(build, config, options),
    )


def _vocabulary(config: DataConfig) -> Stage:
    subwords: dict[str, Any] = {}
    if config.bpe:
        subwords["bpe"] = {"max_subwords": config.bpe.max_subwords}
        if config.bpe.dropout:  # the vocabularies do not depend on its probability
            subwords["bpe"]["dropout"] = True
    return Stage(
        "vocabulary",
        {**subwords, "vocabulary": vocabulary_settings(config.vocabulary)},
        [],
        ["bpe" if config.bpe else "words.train"],
        lambda build: binarize.make_vocabularies(build, config),
    )


def vocabulary_settings(options: VocabularyConfig) -> dict[str, Any]:
    """Return the settings that determine the vocabularies, with checksums of existing files.

    The endings of files that map tokens to ids are included: the same content is read in another
    way if the file has another ending.
    """
    files = {side: file for side in SIDES if (file := getattr(options, side))}
    existing = {side: checksums([file]) for side, file in files.items()}
    endings = {side: mapping_ending(file) for side, file in files.items()}
    mappings = {f"{side}_ending": ending for side, ending in endings.items() if ending}
    extend = {"extend": options.extend} if existing else {}
    settings = options.model_dump(mode="json", exclude={*SIDES, "extend"})
    return {**settings, **existing, **mappings, **extend}


def bpe_settings(options: BPEConfig) -> dict[str, Any]:
    """Return the settings that determine the codes, with checksums of existing files."""
    existing = {"codes": checksums(options.codes)} if options.codes else {}
    others = {"max_subwords", "codes", *DROPOUT_KEYS}
    settings = options.model_dump(mode="json", exclude=others)
    return {**settings, **existing}


def checksums(files: Sequence[str]) -> list[str]:
    """Return the checksums of files. Raises DataError if one cannot be read."""
    sums = []
    for file in files:
        with open_bytes(file):  # raises DataError with the reason
            sums.append(checksum(Path(file)))
    return sums


def _ids(config: DataConfig, split: str, needs: list[str]) -> Stage:
    dropout = binarize.dropout_of(config, split)
    settings = dropout.model_dump(mode="json", include=DROPOUT_KEYS) if dropout else {}
    return Stage(
        f"ids.{split}",
        {"bpe": settings} if settings else {},
        [],
        needs,
        lambda build: binarize.write_ids(build, config, split),
    )


def _step_settings(config: DataConfig, steps: Sequence[PrepStep]) -> dict[str, Any]:
    """Return the languages and steps, which determine the words."""
    return {
        **preprocess.languages_by_side(config),
        "steps": [step.model_dump(mode="json") for step in steps],
    }


def _versions(steps: Sequence[PrepStep]) -> dict[str, Any]:
    """Return the versions of the packages that the steps use, and of the steps themselves.

    Version 1 of a step is omitted: prepared folders without versions of steps stay up to date. For
    classes outside fusetk, the checksums of their modules are included.
    """
    packages = manifest.package_versions(
        dict.fromkeys(package for step in steps for package in step.packages)
    )
    versions = {step.step: step.version for step in steps if step.version > 1}
    code = step_code(steps)
    return {
        **packages,
        **({"step_versions": versions} if versions else {}),
        **({"step_code": code} if code else {}),
    }


def step_code(steps: Sequence[PrepStep]) -> dict[str, str]:
    """Return 12 digits of the checksum of each module with a step outside fusetk."""
    checksums = code_checksums(step.step for step in steps if not is_own(step))
    return {module: checksum[:12] for module, checksum in checksums.items()}


def describe(
    config: DataConfig, inputs: Mapping[str, manifest.Record], build: Build
) -> dict[str, Any]:
    """Return the contents of `manifest.json`."""
    results = {name: stage["results"] for name, stage in build.stages.items()}
    tests = [name.removeprefix("ids.") for name in results if name.startswith("ids.test.")]
    splits = {
        split: _describe_split(config, results, split) for split in ["train", "valid", *tests]
    }
    outputs = [
        [name, stage["key"], {file: out["sha256"] for file, out in stage["outputs"].items()}]
        for name, stage in build.stages.items()
    ]
    return {
        "format": manifest.FORMAT,
        "fingerprint": digest(outputs),
        "languages": preprocess.languages_by_side(config),
        "versions": manifest.versions(),
        "settings": config.model_dump(mode="json", exclude={"folder"}),
        "vocabulary": results["vocabulary"],
        "bpe": results.get("bpe"),
        "splits": splits,
        "inputs": dict(inputs),
        "stages": build.stages,
    }


def _describe_split(
    config: DataConfig, results: Mapping[str, Mapping[str, Any]], split: str
) -> dict[str, Any]:
    """Return the counts that the stages of a split recorded."""
    ids = results[f"ids.{split}"]
    words = results.get(f"words.{split}", {"dropped": {}})
    pairs_out = ids["source"]["sentences"]
    counts: dict[str, Any] = {
        "pairs_in": words.get("pairs_in", pairs_out),
        "pairs_out": pairs_out,
        "dropped": dict(Counter(words["dropped"]) + Counter(ids["dropped"])),
    }
    to_valid = words.get("to_valid", 0)
    if to_valid:
        counts["to_valid"] = to_valid
    for name in ("dropped_tokens", "segmentations"):
        if name in ids:
            counts[name] = ids[name]
    if split == "train":
        counts["corpora"] = [
            {"prefix": prefix, "pairs": pairs}
            for prefix, pairs in zip(config.train, ids["corpora"], strict=True)
        ]
        assert sum(ids["corpora"]) == pairs_out
    assert counts["pairs_in"] == pairs_out + sum(counts["dropped"].values()) + to_valid, split
    return {**counts, "source": ids["source"], "target": ids["target"]}
