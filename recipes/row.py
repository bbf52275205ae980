"""Facts of a config for the scripts, and raw and tokenised text to score.

`python row.py facts CONFIG RAW PREPARED [KEY=VALUE ...]` prints a name, a tab and a value for each
fact. `... references CONFIG RAW PREPARED FOLDER [KEY=VALUE ...]` writes the further references of
test sets, tokenised and raw. `... detokenize PREPARED WORDS RAW` writes tokenised translations as
raw text.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fusetk import recipe
from fusetk.data.pipeline import Pipeline
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.steps.tokenize import Tokenize
from fusetk.data.text import read_lines, writer
from fusetk.errors import FusetkError
from fusetk.recipe import Recipe


def facts(config: Recipe, raw: Path, prepared: Path) -> Iterator[tuple[str, str]]:
    """Yield names and values. The values of `set` are overrides that read text from ``raw``."""
    data = config.data

    def in_raw(prefixes: list[str]) -> list[str]:
        return [str(raw / Path(prefix).name) for prefix in prefixes]

    yield "source", data.source
    yield "target", data.target
    yield "seed", str(config.training.seed)
    yield "average", str(config.training.keep_last)
    if config.paper and config.paper.checkpoint:
        yield "checkpoint", config.paper.checkpoint
    yield from (("metric", name) for name in metrics(config))
    if lowercases(config):
        yield "lowercase", "yes"
    yield from (("test", name) for name in data.test)
    yield "set", "data.folder=" + json.dumps(str(prepared))
    yield "set", "data.train=" + json.dumps(in_raw(data.train))
    if isinstance(data.valid, list):
        yield "set", "data.valid=" + json.dumps(in_raw(data.valid))
    tests = {name: in_raw(prefixes) for name, prefixes in data.test.items()}
    yield "set", "data.test=" + json.dumps(tests)


def metrics(config: Recipe) -> list[str]:
    """Return the metric of the published scores first, then those to print beside it.

    If the preparation splits words at hyphens, multi-bleu differs from that of unsplit words, so
    both are printed, and sacreBLEU.
    """
    published = config.paper.metric if config.paper else None
    names = [published or ("multi-bleu-lc" if lowercases(config) else "multi-bleu")]
    if splits_hyphens(config):
        names += ["multi-bleu", "multi-bleu-joined", "sacrebleu"]
    return list(dict.fromkeys(names))


def lowercases(config: Recipe) -> bool:
    """Whether the target is lower-cased."""
    return any(
        isinstance(step, Lowercase) and step.works_on("target") for step in config.data.steps
    )


def splits_hyphens(config: Recipe) -> bool:
    """Whether the tokeniser splits words of the target at hyphens."""
    return any(
        isinstance(step, Tokenize) and step.aggressive_hyphens and step.works_on("target")
        for step in config.data.steps
    )


def references(config: Recipe, raw: Path, prepared: Path, folder: Path) -> None:
    """Write FOLDER/SET/1.txt (tokenised), 1.raw, 2.txt, ... for each further reference of a set.

    A set has as many further references as all of its texts have. Another row may read the files
    at the same time, so each is replaced in one step, and only outdated references are deleted.
    """
    pipeline = Pipeline.load(prepared / "text")
    written = set()
    for name, prefixes in config.data.test.items():
        number = 1
        while all(
            paths := [
                _further(raw / Path(prefix).name, config.data.target, number) for prefix in prefixes
            ]
        ):
            lines = [line for path in paths for line in read_lines(str(path))]
            words = [pipeline.words("target", line) for line in lines]
            for path, text in (
                (folder / name / f"{number}.raw", lines),
                (folder / name / f"{number}.txt", words),
            ):
                _write(path, text)
                written.add(path)
            number += 1
    for path in {*folder.glob("*/*.raw"), *folder.glob("*/*.txt")} - written:
        path.unlink(missing_ok=True)


def _further(prefix: Path, language: str, number: int) -> Path | None:
    """Return PREFIX.en1 or PREFIX.en1.gz, whichever exists."""
    path = prefix.with_name(f"{prefix.name}.{language}{number}")
    packed = path.with_name(path.name + ".gz")
    if path.exists():
        return path
    return packed if packed.exists() else None


def _write(path: Path, lines: list[str]) -> None:
    """Write the lines to a temporary file and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writer(temporary) as file:
        file.writelines(f"{line}\n" for line in lines)
    temporary.replace(path)


def main(arguments: list[str]) -> int:
    """Run a command of the scripts and return the exit status."""
    command, *rest = arguments
    try:
        if command == "detokenize":
            pipeline = Pipeline.load(Path(rest[0]) / "text")
            _write(Path(rest[2]), [pipeline.raw(line) for line in read_lines(rest[1])])
            return 0
        config, raw, prepared, *rest = rest
        if command == "facts":
            for name, value in facts(recipe.load(config, rest), Path(raw), Path(prepared)):
                print(f"{name}\t{value}")
        else:
            references(recipe.load(config, rest[1:]), Path(raw), Path(prepared), Path(rest[0]))
        return 0
    except FusetkError as error:
        print(f"row.py: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
