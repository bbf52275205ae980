"""Conversion of raw text to tokens and back. A run keeps the files of it in its folder `text/`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fusetk.data import bpe
from fusetk.data.bpe import BPE
from fusetk.data.steps import Step
from fusetk.data.steps.base import (
    LearnedStep,
    LineFunction,
    LineStep,
    PrepStep,
    StepModel,
    StepModels,
    line_steps,
)
from fusetk.data.steps.calls import line_function, load_model, save_model, undo_function
from fusetk.data.text import read_lines, single_spaces, writer
from fusetk.data.vocab import Vocabulary
from fusetk.errors import DataError
from fusetk.files import checksum

SIDES = ("source", "target")
FILE = "pipeline.json"
COPY_AGAIN = "copy the folder again from its original place"


class Text:
    """Conversion of raw lines to words and back by the line steps, without BPE and vocabularies."""

    def __init__(
        self,
        steps: Sequence[PrepStep],
        source: str,
        target: str,
        models: StepModels | None = None,
    ):
        self.steps = [step for step in steps if isinstance(step, LineStep)]
        self.source_language = source
        self.target_language = target
        self.models = models or {}
        self._functions: dict[str, list[LineFunction]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the functions of the steps, which pickle may refuse."""
        state = {**vars(self), "_functions": {}}
        state.pop("_undo_functions", None)
        return state

    def language(self, side: str) -> str:
        return self.source_language if side == "source" else self.target_language

    def words(self, side: str, line: str) -> str:
        """Return a raw line as words separated by one space."""
        if side not in self._functions:
            language = self.language(side)
            functions = self._functions[side] = []
            for step in self.steps:
                if isinstance(step, LearnedStep):  # prep writes and reads training text before it
                    functions.append(single_spaces)
                if function := line_function(step, side, language, self.models):
                    functions.append(function)
        for function in self._functions[side]:
            line = function(line)
        return single_spaces(line)

    def import_libraries(self) -> None:
        """Import the libraries of the steps, so that the first line takes no longer than others."""
        for side in SIDES:
            self.words(side, "")

    @cached_property
    def _undo_functions(self) -> list[LineFunction]:
        """The undo functions of the target's steps, the last step first."""
        steps = line_steps(reversed(self.steps), "target")
        functions = [undo_function(step, self.target_language) for step in steps]
        return [function for function in functions if function is not None]

    def raw(self, words: str) -> str:
        """Return a target line of words as raw text: undo the steps that can be undone."""
        if words:
            for undo in self._undo_functions:
                words = undo(words)
        return words


class Pipeline(Text):
    """Conversion of raw text to tokens and back, by the steps, BPE and vocabularies of both sides.

    ``codes`` is keyed by side, and empty if words are the tokens.
    """

    def __init__(
        self, text: Text, codes: dict[str, BPE], vocabularies: tuple[Vocabulary, Vocabulary]
    ):
        super().__init__(text.steps, text.source_language, text.target_language, text.models)
        self.checksums: dict[str, str] = {}  # of the files that ``load`` read, by name
        self.bpe = codes
        self.source_vocab, self.target_vocab = vocabularies

    def vocabulary(self, side: str) -> Vocabulary:
        return self.source_vocab if side == "source" else self.target_vocab

    def subwords(self, side: str, line: str) -> list[str]:
        """Return the tokens of a line of words."""
        if self.bpe:
            return self.bpe[side](line)
        return [word for word in line.split(" ") if word]

    def join(self, tokens: Sequence[str]) -> str:
        """Return tokens as a line of words, with BPE undone."""
        line = " ".join(tokens)
        return bpe.join(line) if self.bpe else line

    def unsplit(self, line: str) -> str:
        """Return a line of target tokens as words: undo the steps that split words.

        BPE must be undone already.
        """
        for step in line_steps(self.steps, "target"):
            if step.splits_words:
                undo = undo_function(step, self.target_language)
                line = undo(line) if undo else line
        return line

    def num_words(self, tokens: Sequence[str]) -> int:
        """Return the number of words of target tokens, before the split into subwords."""
        return len(self._word_starts(tokens))

    def target_words(self, tokens: Sequence[str]) -> list[tuple[int, str]]:
        """Return the index of the first token and the text of each word of target tokens."""
        starts = self._word_starts(tokens)
        return [
            (start, self.unsplit(self.join(tokens[start:end])))
            for start, end in pairwise([*starts, len(tokens)])
        ]

    def _word_starts(self, tokens: Sequence[str]) -> list[int]:
        """Return the indices of the target tokens that begin words."""
        if self.bpe:
            return bpe.word_starts(tokens)
        steps = line_steps(self.steps, "target")
        return [
            i
            for i, token in enumerate(tokens)
            if not i or all(step.begins_word(token) for step in steps)
        ]

    def difference(self, other: "Pipeline") -> str | None:
        """Return what differs in the preparation of text, apart from the vocabularies; or None."""
        if any(self.language(side) != other.language(side) for side in SIDES):
            return "languages"
        steps, others = ([step.model_dump() for step in each.steps] for each in (self, other))
        if steps != others:
            return "steps"
        files, other_files = (
            {name: value for name, value in each.checksums.items() if not name.startswith("vocab")}
            for each in (self, other)
        )
        return None if files == other_files else "BPE codes or models of steps"

    def save(self, folder: Path) -> None:
        """Write the files that ``load`` reads, and their checksums."""
        folder.mkdir(parents=True, exist_ok=True)
        joint_vocabulary = self.source_vocab is self.target_vocab
        joint_bpe = bool(self.bpe) and self.bpe["source"].codes is self.bpe["target"].codes
        has_threshold = any(codes.vocabulary is not None for codes in self.bpe.values())
        description = {
            "source": self.source_language,
            "target": self.target_language,
            "steps": [step.model_dump(mode="json") for step in self.steps],
            "bpe": {"joint": joint_bpe, "vocabulary": has_threshold} if self.bpe else None,
            "vocabulary": {"joint": joint_vocabulary},
        }
        written: list[Path] = []
        for side in SIDES:
            language = self.language(side)
            if self.bpe:
                written += self._save_bpe(folder, side, joint_bpe, has_threshold)
            vocabulary = self.vocabulary(side)
            if not (joint_vocabulary and side == "target"):
                path = folder / ("vocab" if joint_vocabulary else f"vocab.{language}")
                vocabulary.save(path)
                written.append(path)
            for step in learned_steps(self.steps, side):
                path = folder / f"{step.model_file}.{language}"
                save_model(step, self.models[side, step.step], path)
                written.append(path)
        with writer(folder / FILE) as file:
            sums = {path.name: checksum(path) for path in written}
            file.write(json.dumps({**description, "sha256": sums}, indent=2) + "\n")

    def _save_bpe(self, folder: Path, side: str, joint: bool, has_threshold: bool) -> list[Path]:
        """Write one side's codes and, with a vocabulary threshold, its counts of subwords."""
        language = self.language(side)
        codes = self.bpe[side]
        written = [folder / bpe.codes_name(joint, language)]
        with writer(written[0]) as file:
            file.writelines(f"{line}\n" for line in codes.codes)
        if has_threshold:
            written.append(folder / f"bpe.vocab.{language}")
            counts = codes.vocabulary or {}  # a side without a vocabulary gets an empty file
            with writer(written[1]) as file:
                file.writelines(f"{token} {count}\n" for token, count in counts.items())
        return written

    @classmethod
    def load(cls, folder: Path) -> "Pipeline":
        """Read a folder `text/`.

        Raises DataError if a file is missing, malformed or changed since it was written.
        """
        folder = Path(folder)
        path = folder / FILE
        _check_exists(path)
        try:
            description: dict[str, Any] = json.loads("\n".join(read_lines(path)))
            steps = TypeAdapter(list[Step]).validate_python(description["steps"])
            source, target = (description[side] + "" for side in SIDES)
            joint = bool(description["vocabulary"]["joint"])
            sums = dict(description["sha256"])
            bpe_description = description["bpe"] and (
                bool(description["bpe"]["joint"]),
                int(description["bpe"]["vocabulary"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise DataError(
                f"{path} does not describe a text pipeline ({reason}); {COPY_AGAIN}"
            ) from None
        for name in sums:
            _check_exists(folder / name)
        languages = {"source": source, "target": target}
        models = load_models(lambda name: folder / name, steps, languages)
        codes: dict[str, BPE] = {}
        if bpe_description:
            codes = load_bpe(lambda name: folder / name, languages, *bpe_description)
        source_vocab = Vocabulary.load(folder / ("vocab" if joint else f"vocab.{source}"))
        target_vocab = source_vocab if joint else Vocabulary.load(folder / f"vocab.{target}")
        for name, expected in sums.items():
            if checksum(folder / name) != expected:
                raise DataError(
                    f"{folder / name} is damaged: its checksum has changed; {COPY_AGAIN}"
                )
        text = Text(steps, source, target, models)
        pipeline = cls(text, codes, (source_vocab, target_vocab))
        pipeline.checksums = sums
        return pipeline


def _check_exists(path: Path) -> None:
    """Raise DataError if a file of a folder `text/` does not exist."""
    if not path.exists():
        raise DataError(f"{path} is missing; {COPY_AGAIN}")


def learned_steps(steps: Sequence[PrepStep], side: str) -> list[LearnedStep]:
    """Return the steps of a side that have a model."""
    return [step for step in line_steps(steps, side) if isinstance(step, LearnedStep)]


def load_models(
    find: Callable[[str], Path], steps: Sequence[PrepStep], languages: Mapping[str, str]
) -> dict[tuple[str, str], StepModel]:
    """Return the models of all learned steps, by side and name of the step.

    ``find`` returns the path of a file by its name; ``languages`` is keyed by side.
    """
    return {
        (side, step.step): load_model(step, find(f"{step.model_file}.{language}"))
        for side, language in languages.items()
        for step in learned_steps(steps, side)
    }


def load_bpe(
    find: Callable[[str], Path], languages: Mapping[str, str], joint: bool, threshold: int
) -> dict[str, BPE]:
    """Return the BPE of both sides, with one list of codes if ``joint``.

    A ``threshold`` above 0 reads the counts of subwords. ``find`` returns the path of a file by its
    name; ``languages`` is keyed by side.
    """
    loaded: dict[str, BPE] = {}
    lines: list[str] = []
    for side, language in languages.items():
        path = find(bpe.codes_name(joint, language))
        if not (joint and lines):
            lines = list(read_lines(path, bom=False))
        counts = None
        if threshold:
            counts = bpe.read_vocabulary(find(f"bpe.vocab.{language}"), threshold)
        loaded[side] = BPE(lines, counts, str(path))
    return loaded
