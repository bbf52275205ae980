"""SentencePiece: subwords of raw text, for languages with and without spaces."""

import io
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fusetk.data.steps.base import LearnedStep, LineFunction
from fusetk.data.subword_warnings import WORD_MARK
from fusetk.errors import ConfigError, DataError
from fusetk.files import replace_file

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
LONGEST_LINE = 1 << 20  # bytes; SentencePiece ignores longer lines
MISSING = "the step sentencepiece needs its library: pip install 'fusetk[sentencepiece]'"


class SentencePiece(LearnedStep):
    """Split raw text into subwords with SentencePiece (Kudo and Richardson 2018).

    The subwords are the tokens: set `data.bpe` to null, and leave out the step `tokenize`. No later
    step may change the same side of the text. Spaces become parts of subwords, so text without
    spaces between words needs no segmentation. Each side learns its own model. The step needs the
    extra `sentencepiece`.
    """

    step: Literal["sentencepiece"]
    size: int = Field(8000, ge=8)
    """Number of subwords. A small text gives fewer."""
    algorithm: Literal["unigram", "bpe", "word", "char"] = "unigram"
    """Kind of the model: `unigram` is Kudo 2018."""
    byte_fallback: bool = True
    """Write a character that the model does not have as its UTF-8 bytes, `<0xE4>`. Such characters
    are then translated as bytes instead of `<unk>`."""
    coverage: float = Field(0.9995, gt=0, le=1)
    """Share of the characters of the text that the model has."""
    normalization: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    """Unicode normalisation before the split; `_cf` folds case."""
    sample: int = Field(1_000_000, ge=0)
    """Largest number of sentences from which the model is learned, drawn at random; 0 means all."""

    model_file = "sentencepiece"
    packages = ("sentencepiece",)
    splits_words = True

    def learn(self, lines: Iterable[str]) -> "PieceModel":
        """Learn the model of a side. Raises DataError if the text is too small or empty."""
        library = _library()
        content = io.BytesIO()
        try:
            library.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=content,
                vocab_size=self.size,
                hard_vocab_limit=False,
                model_type=self.algorithm,
                byte_fallback=self.byte_fallback,
                character_coverage=self.coverage,
                normalization_rule_name=self.normalization,
                input_sentence_size=self.sample,
                max_sentence_length=LONGEST_LINE,
                num_threads=1,  # several threads add the counts in no fixed order
                minloglevel=2,
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).rpartition("] ")[2] or str(error)
            raise DataError(
                f"SentencePiece cannot learn a model of size {self.size} ({reason}); "
                "change `size` of the step, or give more text"
            ) from None
        return PieceModel(content.getvalue())

    def load(self, path: Path) -> "PieceModel":
        try:
            return PieceModel(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except RuntimeError:
            raise DataError(f"{path} is not a model of SentencePiece; run fusetk prep") from None

    def begins_word(self, token: str) -> bool:
        return token.startswith(WORD_MARK)

    def required_tokens(self) -> list[str]:
        return [f"<0x{byte:02X}>" for byte in range(256)] if self.byte_fallback else []

    def undo_function(self, language: str) -> LineFunction:
        return join_pieces if self.byte_fallback else join_pieces_without_bytes


class PieceModel:
    """A model of SentencePiece: maps a line to its subwords, separated by spaces."""

    def __init__(self, content: bytes):
        """Raises RuntimeError if ``content`` is not a model."""
        self.content = content
        self.processor = _library().SentencePieceProcessor(model_proto=content)

    def __call__(self, line: str) -> str:
        return " ".join(self.processor.encode(line, out_type=str))

    def save(self, path: Path) -> None:
        replace_file(path, self.content)

    def __reduce__(self) -> tuple[type["PieceModel"], tuple[bytes]]:
        return PieceModel, (self.content,)  # worker processes get a copy


def join_pieces(line: str) -> str:
    """Return subwords as one line of raw text.

    Bytes that are not UTF-8 become the replacement character. Bytes that end a line become spaces.
    """
    runs = groupby(line.split(" "), lambda piece: BYTE.fullmatch(piece) is not None)
    text = "".join(
        _decode_bytes(pieces) if are_bytes else "".join(pieces) for are_bytes, pieces in runs
    )
    # With `algorithm: word`, the bytes of a word include those of the space before it.
    return text.replace(WORD_MARK, " ").replace("\n", " ").replace("\r", " ").strip(" ")


def join_pieces_without_bytes(line: str) -> str:
    """Return subwords of a model without ``byte_fallback`` as one line of raw text."""
    return line.replace(" ", "").replace(WORD_MARK, " ").strip(" ")


def _decode_bytes(pieces: Iterable[str]) -> str:
    numbers = (int(BYTE.sub(r"\1", piece), 16) for piece in pieces)
    return bytes(numbers).decode("utf-8", errors="replace")


def _library() -> Any:
    try:
        import sentencepiece
    except ModuleNotFoundError:
        raise ConfigError(MISSING) from None
    return sentencepiece
