"""Reading and writing of text: the ends of lines, and errors about files that cannot be used."""

import errno
import gzip
import os
import zlib
from pathlib import Path

import pytest

from fusetk.data.text import (
    FilePair,
    cannot_write,
    check_inputs_and_output,
    locate,
    read_lines,
    read_pairs,
    writer,
)
from fusetk.errors import DataError

ODD = "a\u2028b\u0085c\u00a0d\x0ce\tf\0g\rh\x1ci"


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(f"\ufeff{ODD}\r\n\n \n{ODD}".encode())
    assert list(read_lines(path)) == [ODD, "", " ", ODD]


@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_written_lines_are_read_unchanged(tmp_path: Path, name: str) -> None:
    lines = ["", ODD, " ä ", "", "last"]
    with writer(tmp_path / name) as file:
        file.writelines(line + "\n" for line in lines)
    assert list(read_lines(tmp_path / name)) == lines
    assert (tmp_path / name).read_bytes()[:2] == (b"\x1f\x8b" if name.endswith("gz") else b"\na")


def test_a_carriage_return_within_a_line_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\rb\r\r\nc\r")
    assert list(read_lines(tmp_path / "x")) == ["a\rb", "c"]


def test_a_pipe_is_not_opened_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # without a writer, opening it would not end
    check_inputs_and_output([tmp_path / "pipe"], tmp_path / "out")


def test_a_byte_order_mark_alone_is_not_a_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf")
    assert list(read_lines(tmp_path / "x")) == []


def test_a_bad_byte_is_named_with_line_and_offset(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"good\nab\xe4c\n")
    with pytest.raises(
        DataError, match="x, line 2: byte 0xe4 at offset 2 of the line is not UTF-8"
    ):
        list(read_lines(tmp_path / "x"))


def test_gzip_without_its_ending_is_suspected(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(b"text\n"))
    with pytest.raises(DataError, match="looks like gzip: decompress it, or give it as"):
        list(read_lines(tmp_path / "x"))


def test_damaged_gzip_is_named_with_line(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f"line {i * i}\n" for i in range(5000)).encode())
    flipped = packed[:900] + b"\0" * 60 + packed[960:]
    for name, content in (
        ("cut.gz", packed[:-200]),
        ("wrong.gz", b"not gzip at all\n"),
        ("flipped.gz", flipped),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            DataError, match=rf"{name}: the compressed data is damaged after line \d+"
        ):
            list(read_lines(tmp_path / name))


def test_lines_before_the_damage_of_gzip_are_counted(tmp_path: Path) -> None:
    content = "".join(f"line {i * i}\n" for i in range(200_000)).encode()
    packed = gzip.compress(content)
    place = len(packed) // 2
    intact = zlib.decompressobj(wbits=31).decompress(packed[:place]).count(b"\n")
    assert intact > 90_000
    # The bits 11 at the start of a block are an error; here they follow a block that is flushed.
    compressor = zlib.compressobj(wbits=31)
    flushed = compressor.compress(content[:1000]) + compressor.flush(zlib.Z_SYNC_FLUSH)
    lines = content[:1000].count(b"\n")
    for name, damaged, number in (
        ("cut.gz", packed[:place], intact),
        ("members.gz", gzip.compress(b"a\nb\n") + packed[:place], intact + 2),
        ("block.gz", flushed + b"\7" + packed, lines),
        ("member.gz", gzip.compress(b"a\nb\n") + b"text", 2),
        ("checksum.gz", packed[:-8] + b"\0" * 8, 200_000),
    ):
        (tmp_path / name).write_bytes(damaged)
        read = []
        with pytest.raises(DataError, match=rf"{name}: .* is damaged after line {number} \("):
            for line in read_lines(tmp_path / name):
                read.append(line)
        assert len(read) == (0 if name == "block.gz" else number)


def test_missing_files_and_folders_are_errors(tmp_path: Path) -> None:
    (tmp_path / "train.dee").write_text("x\n")
    (tmp_path / "folder.de").mkdir()
    with pytest.raises(
        DataError, match=r"neither .*train\.de nor train\.de\.gz exists; did you mean train\.dee"
    ):
        locate(str(tmp_path / "train"), "de")
    with pytest.raises(DataError, match=r"its folder .* does not exist either"):
        locate(str(tmp_path / "nowhere" / "train"), "de")
    with pytest.raises(DataError, match=r"train\*\.de\.gz exists; patterns are not expanded"):
        locate(str(tmp_path / "train*"), "de")
    with pytest.raises(DataError, match=r"is a folder; '.*folder' must be the prefix of text"):
        locate(str(tmp_path / "folder"), "de")
    with pytest.raises(DataError, match=r"exists; .*folder\.de is a folder: give the prefix of"):
        locate(str(tmp_path / "folder.de"), "en")
    with pytest.raises(DataError, match="is a folder; give a text file"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("name", ["x.de", "x.de.gz"])
def test_a_pipe_is_not_a_file_of_a_prefix(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} is not a regular file .*; copy it to a file"):
        locate(str(tmp_path / "x"), "de")


def test_plain_and_packed_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.de").write_text("x\n")
    assert locate(str(tmp_path / "x"), "de") == tmp_path / "x.de"
    (tmp_path / "x.de.gz").write_bytes(gzip.compress(b"x\n"))
    with pytest.raises(DataError, match=r"both .* exist"):
        locate(str(tmp_path / "x"), "de")


def test_unequal_counts_name_the_place(tmp_path: Path) -> None:
    lengths = [1 + (7 * i * i) % 23 for i in range(300)]
    source, target = tmp_path / "x.de", tmp_path / "x.en"
    source.write_text("".join("wort " * n + "\n" for n in lengths))
    target.write_text("".join("words " * n + "\n" for i, n in enumerate(lengths) if i != 120))
    with pytest.raises(
        DataError,
        match=r"300 lines and .* 299: their lines seem misaligned from line (119|12[0-3]) on",
    ):
        list(read_pairs(FilePair(source, target)))
    target.write_text("".join("words " * n + "\n" for n in lengths[:250]))
    with pytest.raises(
        DataError, match=r"300 lines and .* 250: x\.en seems to end early, after line 250"
    ):
        list(read_pairs(FilePair(source, target)))
    # The last lines of the shorter file have lengths that fit later lines of the other file.
    cut = lengths[:248] + lengths[298:]
    target.write_text("".join("words " * n + "\n" for n in cut))
    with pytest.raises(DataError, match=r"x\.en seems to end early, after line 250"):
        list(read_pairs(FilePair(source, target)))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match="cannot be written: Not a directory"),
        writer(tmp_path / "file" / "x"),
    ):
        pass


@pytest.mark.parametrize(
    ("number", "advice", "status"),
    [
        (errno.ENOSPC, "free some disk space", 74),
        (errno.EFBIG, "raise the limit of the size of a file (ulimit -f)", 2),
        (errno.EISDIR, "name a file", 2),
        (errno.ENOTDIR, "choose another folder", 2),
        (errno.EACCES, "make this one writable", 2),
    ],
)
def test_advice_for_a_file_that_cannot_be_written(number: int, advice: str, status: int) -> None:
    error = cannot_write("out.txt", OSError(number, "reason"))
    assert str(error).startswith("out.txt cannot be written: reason; ")
    assert advice in str(error) and error.exit_code == status
