"""Text in, text out: order, batches, blank lines, long lines, chunks."""

import errno
import io
import logging
import math
import os
import threading

import pytest
import torch

from fusetk.data.pipeline import Pipeline, Text
from fusetk.data.steps.lowercase import Lowercase
from fusetk.data.steps.tokenize import Tokenize
from fusetk.data.text import decode_lines
from fusetk.data.vocab import EOS, Vocabulary
from fusetk.decoding.config import SearchConfig
from fusetk.decoding.requests import Request
from fusetk.decoding.stream import LineReader, chunks
from fusetk.decoding.translate import STEP_COST, Translator, source_batches
from fusetk.errors import DataError
from tests.decoding.fakes import Echo

WORDS = ["ein", "hund", "läuft", "und", "bellt", ".", ","]


def pipeline(source=WORDS, target=WORDS) -> Pipeline:
    steps = [Tokenize(step="tokenize"), Lowercase(step="lowercase")]
    return Pipeline(Text(steps, "de", "en"), {}, (Vocabulary(source), Vocabulary(target)))


def translator(**options) -> Translator:
    model = Echo(vocabulary=4 + len(WORDS), source=4 + len(WORDS), seed=3, scale=4.0)
    return Translator([model.eval()], pipeline(), SearchConfig(**({"beam": 3} | options)))


LINES = [
    "Ein Hund läuft.",
    "",
    "Hund",
    "   ",
    "Ein Hund läuft und bellt, und bellt, und bellt.",
    "Ein Hund läuft.",
    "\t",
    "Katze?",
    "Ein",
]


@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
def test_each_line_has_one_translation_for_all_batch_sizes(batch_tokens):
    translations = translator(batch_tokens=batch_tokens).translate(LINES)
    assert [bool(line) for line in translations] == [bool(line.strip()) for line in LINES]
    assert translations[0] == translations[5]
    assert translations == [translator().translate([line])[0] for line in LINES]


def test_blank_lines_are_not_translated():
    tiny = translator()
    assert tiny.translate(["", " ", "\u00a0", "\x00"]) == [""] * 4
    assert tiny.translate([]) == []
    assert not tiny.models[0].rows


def test_tokenized_text_has_the_translations_of_raw_text():
    tiny = translator(n_best=3)
    [raw] = tiny.n_best(["Ein Hund läuft."])
    [words] = tiny.n_best(["ein hund läuft ."], tokenized=True)
    assert [t.tokens for t in raw] == [t.tokens for t in words]
    assert [t.text for t in words] == [" ".join(t.tokens) for t in words]
    assert (
        [t.text for t in raw]
        == [tiny.pipeline.raw(t.text) for t in words]
        != [t.text for t in words]
    )
    assert [t.normalized for t in raw] == sorted((t.normalized for t in raw), reverse=True)


def test_long_lines_are_cut_with_a_warning_that_names_them(caplog):
    tiny = translator(max_source_length=4)
    with caplog.at_level(logging.WARNING):
        long, short = tiny.n_best(["Ein Hund läuft und bellt", "Ein Hund läuft und"], first=11)
    assert "line 11 has 5 tokens: only the first 4" in caplog.text and "line 12" not in caplog.text
    assert [t.tokens for t in long] == [t.tokens for t in short]
    caplog.clear()
    tiny.models[0].max_positions = 4
    tiny.translate(["Ein Hund läuft und"])
    assert "line 1 has 4 tokens: only the first 3" in caplog.text and "positions" in caplog.text


def test_a_phrase_of_the_prefix_needs_positions_once():
    tiny = translator()
    request = Request("Ein Hund", prefix="hund hund", constraints=["hund"])
    size = len(tiny.tokens("target", "hund hund"))
    tiny.models[0].max_positions = size + 1
    [translation] = tiny.translate([request])
    assert translation.lower().startswith("hund")
    tiny.models[0].max_positions = size
    with pytest.raises(DataError, match=f"need {size} tokens, .* have only {size} positions"):
        tiny.translate([request])


def test_a_line_without_a_translation_is_named(caplog):
    tiny = translator(no_repeat_ngram=1, min_length=50, max_length_factor=0, max_length_extra=50)
    with caplog.at_level(logging.WARNING):
        assert tiny.translate(["Ein Hund", ""]) == ["", ""]
    assert "line 1 has no translation" in caplog.text and "line 2" not in caplog.text


def test_unknown_source_words_give_one_warning(caplog):
    tiny = translator()
    with caplog.at_level(logging.WARNING):
        tiny.n_best(["Ein Hund läuft"] * 70 + ["кот"])
        tiny.n_best(["кот"] * 50)  # too short to tell
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        tiny.n_best(["Ein Hund läuft", "кот спит дома сегодня"] * 30, first=11)
        tiny.n_best(["кот спит дома сегодня"] * 60)
    assert [record.getMessage() for record in caplog.records] == [
        "lines 11 to 70: 57 % of the source tokens are not in the source vocabulary; check the "
        "language of the text and its tokenisation"
    ]


def test_unknown_tokens_of_a_prefix_are_named(caplog):
    tiny = translator()
    with caplog.at_level(logging.WARNING):
        tiny.n_best([Request("Ein Hund", prefix="hund кот", constraints=["кот <s>"])], first=7)
    assert [record.getMessage() for record in caplog.records] == [
        "line 7: tokens of the prefix or the phrases of its translation are not in the target "
        "vocabulary and become <unk>: " + " ".join(tiny.tokens("target", "кот <s>"))
    ]


def test_ids_are_translated_alone_as_in_a_batch():
    tiny = translator()
    results = tiny.translate_ids([torch.tensor([5, 6, EOS]).numpy(), [EOS], [6, EOS]])
    assert [len(f) for f in results] == [1, 0, 1]
    assert results[2][0].ids == tiny.translate_ids([[6, EOS]])[0][0].ids


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_batches_hold_each_sentence_once_and_keep_the_budget(workers):
    lengths = torch.randint(1, 40, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    config = SearchConfig(beam=4, batch_tokens=600)
    cuts = source_batches(lengths, config, workers)
    assert sorted(i for cut in cuts for i in cut) == [
        i for i, length in enumerate(lengths) if length > 1
    ]
    limit = min(600, 2 * 600 // workers)
    assert all(len(cut) * 4 * max(lengths[i] for i in cut) <= limit for cut in cuts)
    assert [len(cut) for cut in source_batches([500, 2], config, workers)] == [1, 1]
    assert source_batches([1], config, workers) == []
    alone = source_batches([3] * 9, SearchConfig(beam=4, batch_tokens=1), workers)
    assert alone == [[i] for i in range(9)]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_workers_get_equal_numbers_of_similar_batches(workers):
    config = SearchConfig(beam=1, batch_tokens=1000)
    assert [len(cut) for cut in source_batches([10] * 410, config)] == [100, 100, 100, 100, 10]
    sizes = [len(cut) for cut in source_batches([10] * 410, config, workers)]
    assert len(sizes) % min(workers, 5) == 0
    assert max(sizes) == math.ceil(410 / len(sizes))
    assert source_batches([10] * 100, config, workers) == [list(range(100))]


def test_the_searches_of_workers_take_similar_times():
    lengths = [length for length in range(10, 40) for _ in range(80 - 2 * length)]
    config = SearchConfig(beam=1, batch_tokens=20_000)

    def cost(cut: list[int]) -> int:
        return sum(lengths[i] for i in cut) + STEP_COST * max(lengths[i] for i in cut)

    costs = [cost(cut) for cut in source_batches(lengths, config, 2)]
    assert len(costs) == 2
    assert max(costs) - min(costs) <= 2 * max(lengths)


# Streams ------------------------------------------------------------------------------------------


def test_the_reader_yields_the_lines_of_the_file():
    data = b"\xef\xbb\xbfa\r\nb\n\n" + b"x" * 3_000_000 + b"\n\xe2\x80\xa8\nlast"
    raw = io.BufferedReader(io.BytesIO(data), 10)
    assert list(LineReader(raw)) == [line + b"\n" for line in data.split(b"\n")[:-1]] + [b"last"]
    assert list(LineReader(io.BufferedReader(io.BytesIO(b"")))) == []
    assert list(LineReader(io.BufferedReader(io.BytesIO(b"\n\n")))) == [b"\n", b"\n"]


def test_a_typed_line_is_a_chunk_and_many_lines_are_large_chunks():
    read_end, writer = os.pipe()
    with open(read_end, "rb") as file:
        reader = LineReader(file)
        stream = chunks(decode_lines(reader, "it"), 1000, reader.ready)
        os.write(writer, b"one\nhalf")
        assert next(stream) == ["one"]
        os.write(writer, b" two\n")
        assert next(stream) == ["half two"]

        def flood() -> None:
            for i in range(2500):
                os.write(writer, f"line {i}\n".encode())
            os.close(writer)

        thread = threading.Thread(target=flood)
        thread.start()
        read = list(stream)
        thread.join()
    assert [line for chunk in read for line in chunk] == [f"line {i}" for i in range(2500)]
    assert len(read) <= 10 and max(map(len, read)) <= 1000


def test_lines_before_a_broken_one_come_first():
    stream = chunks(decode_lines(iter([b"a\n", b"b\n", b"\xff\n", b"c\n"]), "it"), 10)
    assert next(stream) == ["a", "b"]
    with pytest.raises(DataError, match="it, line 3"):
        next(stream)


def test_lines_before_an_error_of_reading_come_first(tmp_path):
    class Failing(io.FileIO):
        def readinto(self, buffer):
            if self.tell():
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(buffer)

    (tmp_path / "text").write_text("a\nb\nc")
    reader = LineReader(io.BufferedReader(Failing(tmp_path / "text")))
    stream = chunks(decode_lines(reader, "it"), 10, reader.ready)
    assert next(stream) == ["a", "b"]
    with pytest.raises(DataError, match="it: reading failed after line 2: Input/output error"):
        next(stream)
