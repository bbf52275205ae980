"""Texts to score: further references of test sets, and translations as raw text."""

from pathlib import Path

from fusetk.data.config import DataConfig
from fusetk.data.pipeline import Pipeline
from fusetk.data.text import FilePair, cannot_write, locate, read_lines, read_pairs
from fusetk.experiment.places import further_references
from fusetk.files import replace_file
from fusetk.runs import TEXT


def write_references(data: DataConfig, folder: Path) -> None:
    """Write FOLDER/SET/1.txt (tokenised), 1.raw, 2.txt, ... for each further reference of a set.

    A set has as many further references as all of its texts have. Another experiment may read the
    files at the same time, so each is replaced in one step, and only outdated references are
    deleted. Raises DataError if a reference has another number of lines than its source.
    """
    pipeline = Pipeline.load(Path(data.folder) / TEXT)
    written = set()
    for name, prefixes in data.test.items():
        for number, paths in enumerate(further_references(prefixes, data.target), 1):
            pairs = [
                FilePair(locate(prefix, data.source), path)
                for prefix, path in zip(prefixes, paths, strict=True)
            ]
            lines = [line for pair in pairs for _, line in read_pairs(pair)]
            words = [pipeline.words("target", line) for line in lines]
            for ending, text in (("raw", lines), ("txt", words)):
                path = folder / name / f"{number}.{ending}"
                write_lines(path, text)
                written.add(path)
    for path in {*folder.glob("*/*.raw"), *folder.glob("*/*.txt")} - written:
        path.unlink(missing_ok=True)


def detokenize(prepared: Path, words: Path, raw: Path) -> None:
    """Write tokenised translations as raw text."""
    pipeline = Pipeline.load(prepared / TEXT)
    write_lines(raw, [pipeline.raw(line) for line in read_lines(words)])


def write_lines(path: Path, lines: list[str]) -> None:
    """Replace a file by the lines, in one step. Raises DataError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise cannot_write(path, error) from None
