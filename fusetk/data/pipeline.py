"""Raw text to tokens and back, as one object that a run keeps in its folder `text/`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fusetk.data import bpe
from fusetk.data.bpe import BPE
from fusetk.data.config import Deduplicate, Filter, Step, Tokenize, Truecase
from fusetk.data.steps import Change, changes, concerns, one_space, settings
from fusetk.data.text import read_lines, writer
from fusetk.data.truecase import Truecaser, detruecase
from fusetk.data.vocab import Vocabulary
from fusetk.errors import DataError
from fusetk.files import checksum

SIDES = ("source", "target")
FILE = "pipeline.json"


class Text:
    """Raw lines to words: the steps before subwords, without vocabularies."""

    def __init__(
        self,
        steps: Sequence[Step],
        source: str,
        target: str,
        truecasers: dict[str, Truecaser] | None = None,
    ):
        self.steps = [step for step in steps if not isinstance(step, Filter | Deduplicate)]
        self.source_language, self.target_language = source, target
        self.truecasers = truecasers or {}
        self._changes: dict[str, list[Change]] = {}

    def language(self, side: str) -> str:
        return self.source_language if side == "source" else self.target_language

    def words(self, side: str, line: str) -> str:
        """A raw line to words separated by one space."""
        if side not in self._changes:
            self._changes[side] = changes(
                self.steps, side, self.language(side), self.truecasers.get(side)
            )
        for change in self._changes[side]:
            line = change(line)
        return one_space(line)

    @cached_property
    def _detokenize(self) -> Callable[[str], str] | None:
        for step in self.steps:
            if isinstance(step, Tokenize) and concerns(step, "target"):
                from fusetk.data.tokenize import Detokenizer  # sacremoses takes a while to import

                return Detokenizer(self.target_language, unescape=step.escape)
        return None

    def raw(self, words: str) -> str:
        """A target line of words to raw text: capitals where sentences begin, if truecased; detokenised, if tokenised."""
        if any(isinstance(step, Truecase) and concerns(step, "target") for step in self.steps):
            words = detruecase(words)
        return self._detokenize(words) if self._detokenize and words else words


class Pipeline(Text):
    """Raw text to tokens and back: steps, BPE and vocabularies of both sides."""

    def __init__(
        self, text: Text, codes: dict[str, BPE], vocabularies: tuple[Vocabulary, Vocabulary]
    ):
        super().__init__(text.steps, text.source_language, text.target_language, text.truecasers)
        self.bpe = codes  # by side; none when words are the tokens
        self.source_vocab, self.target_vocab = vocabularies

    def subwords(self, side: str, line: str) -> list[str]:
        """A line of words to tokens."""
        if self.bpe:
            return self.bpe[side](line)
        return [word for word in line.split(" ") if word]

    def join(self, tokens: Sequence[str]) -> str:
        """Tokens to a line of words, BPE undone."""
        line = " ".join(tokens)
        return bpe.join(line) if self.bpe else line

    def save(self, folder: Path) -> None:
        """Write all that `load` reads, with the checksums of its files."""
        folder.mkdir(parents=True, exist_ok=True)
        joint_bpe = bool(self.bpe) and self.bpe["source"].codes is self.bpe["target"].codes
        joint = self.source_vocab is self.target_vocab
        description = {
            "source": self.source_language,
            "target": self.target_language,
            "steps": [settings(step) for step in self.steps],
            "bpe": {
                "joint": joint_bpe,
                "vocabulary": any(one.vocabulary is not None for one in self.bpe.values()),
            }
            if self.bpe
            else None,
            "vocabulary": {"joint": joint},
        }
        written: list[Path] = []
        for side in SIDES:
            language = self.language(side)
            if self.bpe:
                written += self._save_bpe(folder, side, joint_bpe)
            vocabulary = self.source_vocab if side == "source" else self.target_vocab
            if not (joint and side == "target"):
                written.append(folder / ("vocab" if joint else f"vocab.{language}"))
                vocabulary.save(written[-1])
            if side in self.truecasers:
                written.append(folder / f"truecase.{language}")
                self.truecasers[side].save(written[-1])
        with writer(folder / FILE) as file:
            sums = {path.name: checksum(path) for path in written}
            file.write(json.dumps({**description, "sha256": sums}, indent=2) + "\n")

    def _save_bpe(self, folder: Path, side: str, joint: bool) -> list[Path]:
        language, codes = self.language(side), self.bpe[side]
        written = [folder / ("bpe.codes" if joint else f"bpe.codes.{language}")]
        with writer(written[0]) as file:
            file.writelines(f"{line}\n" for line in codes.codes)
        if any(one.vocabulary is not None for one in self.bpe.values()):
            written.append(folder / f"bpe.vocab.{language}")
            with writer(written[1]) as file:  # may be empty, which is none
                file.writelines(
                    f"{token} {count}\n" for token, count in (codes.vocabulary or {}).items()
                )
        return written

    @classmethod
    def load(cls, folder: Path) -> "Pipeline":
        """Read a folder `text/`; raises DataError for files that are missing, malformed or not as they were written."""
        folder = Path(folder)
        path = folder / FILE
        try:
            known: dict[str, Any] = json.loads("\n".join(read_lines(path)))
            steps = TypeAdapter(list[Step]).validate_python(known["steps"])
            source, target = (known[side] + "" for side in SIDES)
            joint = bool(known["vocabulary"]["joint"])
            sums = dict(known.get("sha256", {}))  # older folders have none
            segmented = known["bpe"] and (
                bool(known["bpe"]["joint"]),
                int(known["bpe"]["vocabulary"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise DataError(
                f"{path} does not describe a text pipeline ({reason}); copy it again from where it was made"
            ) from None
        languages = {"source": source, "target": target}
        cased = {
            side: Truecaser.load(folder / f"truecase.{languages[side]}")
            for side in SIDES
            if any(isinstance(step, Truecase) and concerns(step, side) for step in steps)
        }
        codes = load_bpe(lambda name: folder / name, languages, *segmented) if segmented else {}
        first = Vocabulary.load(folder / ("vocab" if joint else f"vocab.{source}"))
        second = first if joint else Vocabulary.load(folder / f"vocab.{target}")
        for name, wanted in sums.items():
            if checksum(folder / name) != wanted:
                raise DataError(
                    f"{folder / name} is damaged, it is not as it was written; copy it again from where it was made"
                )
        return cls(Text(steps, source, target, cased), codes, (first, second))


def load_bpe(
    find: Callable[[str], Path], languages: Mapping[str, str], joint: bool, threshold: int
) -> dict[str, BPE]:
    """BPE of both sides, one list of codes when joint; a threshold above 0 reads the counts of subwords."""
    loaded: dict[str, BPE] = {}
    lines: list[str] = []
    for side in SIDES:
        path = find("bpe.codes" if joint else f"bpe.codes.{languages[side]}")
        if not (joint and lines):
            lines = list(read_lines(path, bom=False))
        known = (
            bpe.read_vocabulary(find(f"bpe.vocab.{languages[side]}"), threshold)
            if threshold
            else None
        )
        loaded[side] = BPE(lines, known, str(path))
    return loaded
