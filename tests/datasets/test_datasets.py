"""`fusetk dataset`: formats with their traps, archives, downloads, and the descriptions."""

import errno
import gzip
import hashlib
import http.client
import io
import re
import tarfile
import urllib.error
import zipfile
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from fusetk.cli.main import main
from fusetk.datasets import fetch as fetching
from fusetk.datasets import table
from fusetk.datasets.fetch import fetch
from fusetk.datasets.formats import plain_lines, references, segments
from fusetk.datasets.make import ORIGINS, make
from fusetk.datasets.table import ArchiveConfig, DatasetConfig, TextConfig
from fusetk.errors import DataError, OutputDiskFull
from fusetk.files import locked
from tests.helpers.refusals import refused
from tests.helpers.rows import RECIPES


def text(name: str = "t", format: str = "lines", **options: Any) -> TextConfig:
    values = {"name": name, "format": format, "source": f"{name}.de", "target": f"{name}.en"}
    return TextConfig.model_validate({**values, **options})


def dataset(*texts: TextConfig, **options: Any) -> DatasetConfig:
    values = {"title": "a set", "source": "de", "target": "en", "texts": list(texts)}
    return DatasetConfig.model_validate({**values, **options})


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def read(path: Path, content: str | bytes, **options: Any) -> list[str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if options.get("format") == "segments":
        return [segment.text for segment in segments(path, text(**options))]
    return list(plain_lines(path, text(**options)))


# Formats ------------------------------------------------------------------------------------------

TAGGED = (
    "<url>http://a</url>\r\n<keywords>a, b</keywords>\r\n<talkid>1</talkid>\r\n"
    "<title>A title</title>\r\n<description>A talk: b.</description>\r\n <b>bold</b> &amp; x \r\n"
    "\r\nA\u2028B\u0085C\r\n<reviewer></reviewer>\r\n"
)


def test_lines_of_tags_are_dropped_and_titles_are_kept(tmp_path):
    dropped = ["url", "keywords", "talkid"]
    expected = ["A title", "A talk: b.", "<b>bold</b> &amp; x", "", "A\u2028B\u0085C"]
    assert read(tmp_path / "a", TAGGED, format="wit3", dropped=dropped) == [
        *expected,
        "<reviewer></reviewer>",
    ]
    assert read(tmp_path / "a", TAGGED, format="wit3", dropped=[*dropped, "reviewer"]) == expected


def test_a_tag_is_dropped_by_its_complete_name(tmp_path):
    tags = "<doc docid=1>\n<document>\n</doc>\n"
    assert read(tmp_path / "a", tags, format="wit3", dropped=["doc"]) == ["<document>"]


def test_without_dropped_tags_no_line_is_dropped(tmp_path):
    assert read(tmp_path / "a", "x\n<url>a</url>\n", format="wit3") == ["x", "<url>a</url>"]


def test_entities_end_no_line(tmp_path):
    assert read(tmp_path / "a", "x &#10; y\nz&#13;\n", entities=True) == ["x   y", "z "]


SGML = (
    "\ufeff<?xml version='1.0'?>\r\n<SRCSET setid=x>\r\n<DOC docid=a sysid=\"s\">\r\n"
    "<hl><seg id=1> It\u2019s &lt;1&gt; &amp;amp; </seg></hl>\r\n<p>\r\n"
    "<SEG ID='2'>two\r\nlines</SEG>\r\n<seg id=\"3\"></seg>\r\n</p></DOC></SRCSET>\r\n"
)


def test_segments_without_quotes_in_capitals_over_lines_and_empty(tmp_path):
    kept = read(tmp_path / "a", SGML, format="segments")
    assert kept == ["It\u2019s &lt;1&gt; &amp;amp;", "two lines", ""]
    changed = read(tmp_path / "a", SGML, format="segments", entities=True, apostrophes=True)
    assert changed == ["It's <1> &amp;", "two lines", ""]
    found = segments(tmp_path / "a", text(format="segments"))
    assert [(entry.document, entry.system, entry.number) for entry in found] == [
        ("a", "s", "1"),
        ("a", "s", "2"),
        ("a", "s", "3"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<doc docid=a>\n<seg id=1>x\n<seg id=2>y</seg>\n</doc>\n", "line 2: the <seg> element"),
        ("<doc>\n<seg id=1>x</seg>\n<seg id=2>y\n</doc>\n", "line 3: the <seg> element"),
        ("<doc>\n</doc>\n", "has no <seg> element"),
    ],
)
def test_broken_segments_are_an_error_with_their_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a", content, format="segments")


def test_cedillas_become_commas(tmp_path):
    assert read(tmp_path / "a", "Şi ţară şi Ţi\n", commas=True) == ["Și țară și Ți"]


def sgml(systems: list[str], documents: dict[str, int], mark: str = "") -> str:
    """A set of references, document by document, the later segments of a document first."""
    body = "".join(
        f"<doc docid={name} sysid={system}>\n"
        + "".join(
            f"<seg id={n}>{name}{n} {system}{mark}</seg>\n" for n in reversed(range(1, size + 1))
        )
        + "</doc>\n"
        for name, size in documents.items()
        for system in systems
    )
    return f"<refset setid=x>\n{body}</refset>\n"


def source_set(path: Path, documents: dict[str, int]) -> None:
    body = "".join(
        f'<doc docid="{name}">\n'
        + "".join(f'<seg id="{n}">{name}{n}</seg>\n' for n in range(1, size + 1))
        + "</doc>\n"
        for name, size in documents.items()
    )
    path.write_text(f"<srcset>\n{body}</srcset>\n")


def test_four_references_come_in_the_order_of_the_source(tmp_path):
    documents = {"b": 2, "a": 3}
    source_set(tmp_path / "MT-src.sgm", documents)
    systems = ["E01", "E02", "E03", "E04"]
    (tmp_path / "MT-ref.sgm").write_text(sgml(systems, dict(reversed(documents.items()))))
    test_set = text("MT", "segments", source="MT-src.*", target="MT-ref.*", pairs=5)
    make(dataset(test_set), tmp_path / "raw", tmp_path, False, lambda line: None)
    assert lines(tmp_path / "raw" / "MT.de") == ["b1", "b2", "a1", "a2", "a3"]
    for ending, system in zip(("en", "en1", "en2", "en3"), systems, strict=True):
        expected = [f"{name} {system}" for name in ("b1", "b2", "a1", "a2", "a3")]
        assert lines(tmp_path / "raw" / f"MT.{ending}") == expected


def test_a_reference_with_missing_or_repeated_segments_is_an_error(tmp_path):
    source_set(tmp_path / "s", {"a": 3})
    source = segments(tmp_path / "s", text(format="segments"))

    def target(content: str) -> list[list[str]]:
        (tmp_path / "r").write_text(content)
        return references(source, segments(tmp_path / "r", text(format="segments")), tmp_path)

    with pytest.raises(DataError, match=r"'E02' lacks 1 of 3 segments.*segment 3 of document a"):
        target(sgml(["E01"], {"a": 3}) + sgml(["E02"], {"a": 2}))
    with pytest.raises(DataError, match="segment 3 occurs twice in the reference 'E01'"):
        target(sgml(["E01"], {"a": 3}) + sgml(["E01"], {"a": 3}))


# Archives -----------------------------------------------------------------------------------------


def pack(path: Path, members: dict[str, str]) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in members.items():
                zipped.writestr(name, content)
        return
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content.encode())
            tar.addfile(entry, io.BytesIO(content.encode()))
        dangling = tarfile.TarInfo("link.de")
        dangling.type, dangling.linkname = tarfile.SYMTYPE, "missing.de"
        tar.addfile(dangling)


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "folder", "packed"])
def test_texts_are_read_from_archives_and_folders(tmp_path, name):
    members = {"x/train.de": "eins\r\nzwei\n", "x/train.en": "one\ntwo\n", "x/more.de": "drei\n"}
    files = tmp_path / "files"
    files.mkdir()
    if "." in name:
        pack(files / name, members)
    else:
        (files / "x").mkdir()
        for path, content in members.items():
            with (
                gzip.open(files / f"{path}.gz", "wt")
                if name == "packed"
                else open(files / path, "w", newline="")
            ) as file:
                file.write(content)
    described = dataset(text("train"), archives=[{"file": name}])
    raw = tmp_path / "raw"
    assert make(described, raw, files, False, lambda line: None) == {"train": 2}
    assert lines(raw / "train.de") == ["eins", "zwei"]
    assert sorted(path.name for path in raw.iterdir()) == [ORIGINS, "train.de", "train.en"]
    (raw / "train.de").write_text("changed by the user\n")
    assert make(described, raw, files, False, lambda line: None) == {}
    assert lines(raw / "train.de") == ["changed by the user"]


def failure(tmp_path: Path, described: DatasetConfig) -> str:
    with pytest.raises(DataError) as caught:
        make(described, tmp_path / "raw", tmp_path / "files", False, lambda line: None)
    left = [path.name for path in (tmp_path / "raw").iterdir()]
    assert not left, "an error leaves no file"
    return str(caught.value)


def test_sides_of_different_lengths_and_other_lengths_are_errors(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "t.de").write_text("a\nb\n")
    (tmp_path / "files" / "t.en").write_text("a\n")
    assert "t: the files have different numbers of sentences" in failure(tmp_path, dataset(text()))
    (tmp_path / "files" / "t.en").write_text("a\nb\n")
    described = dataset(text(pairs=3))
    assert "t has 2 pairs, but the published text has 3" in failure(tmp_path, described)
    raw = tmp_path / "raw"
    assert make(described, raw, tmp_path / "files", False, print, any_data=True) == {"t": 2}


def test_damaged_missing_and_ambiguous_files_are_errors(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    described = dataset(text(), archives=[{"file": "a.tgz", "note": "the publisher"}])
    assert "t.de is missing in" in failure(tmp_path, described)
    pack(files / "a.tgz", {"t.de": "a\n" * 9999, "t.en": "b\n" * 9999})
    complete = (files / "a.tgz").read_bytes()
    (files / "a.tgz").write_bytes(complete[: len(complete) // 2])
    assert "is not a complete archive" in failure(tmp_path, described)
    (files / "a.tgz").write_text("no archive")
    assert re.search(r"is not a complete archive \(.*\): delete it", failure(tmp_path, described))
    (files / "a.tgz").write_bytes(complete)
    checked = dataset(text(), archives=[{"file": "a.tgz", "size": len(complete) + 1}])
    assert "the published file" in failure(tmp_path, checked)
    (files / "x").mkdir()
    for folder in (files, files / "x"):
        (folder / "t.de").write_text("a\n")
        (folder / "t.en").write_text("a\n")
    assert "several files match t.de" in failure(tmp_path, described)


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_files_of_an_archive_with_the_same_name_are_an_error(tmp_path, name):
    (tmp_path / "files").mkdir()
    members = {"a/t.de": "a\n", "t.en": "a\n", "b/t.de": "b\n"}
    pack(tmp_path / "files" / name, members)
    message = failure(tmp_path, dataset(text(), archives=[{"file": name}]))
    assert "several files with the name t.de: a/t.de and b/t.de; unpack it" in message


def test_an_encrypted_archive_is_an_error(tmp_path):
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "a.zip"
    pack(path, {"t.de": "a\n", "t.en": "a\n"})
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(signature)
        while start >= 0:
            content[start + flags] |= 1  # encrypted
            start = content.find(signature, start + 1)
    path.write_bytes(content)
    message = failure(tmp_path, dataset(text(), archives=[{"file": "a.zip"}]))
    assert "cannot be unpacked" in message and "unpack it in" in message


def test_a_killed_call_leaves_no_text_without_references(tmp_path, monkeypatch):
    files = tmp_path / "files"
    files.mkdir()
    source_set(files / "t.de", {"a": 1})
    (files / "t.en").write_text(sgml(["E01", "E02"], {"a": 1}))
    described = dataset(text(format="segments"))
    replace, calls = Path.replace, []

    def killed(path: Path, target: Path) -> Path:
        calls.append(target.name)
        if len(calls) == 4:  # the first one is the file of the origins
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            make(described, tmp_path / "raw", files, False, lambda line: None)
    assert calls[-1] == "t.de"
    assert make(described, tmp_path / "raw", files, False, lambda line: None) == {"t": 1}
    assert {path.name for path in (tmp_path / "raw").iterdir()} == {
        ".origins.json",
        "t.de",
        "t.en",
        "t.en1",
    }


def test_a_text_of_another_data_set_is_neither_used_nor_replaced(tmp_path: Path) -> None:
    files, raw = tmp_path / "files", tmp_path / "raw"
    files.mkdir()
    for name in ("t.de", "t.en", "other.en", "t.fr"):
        (files / name).write_text(f"{name}\n")

    def call(described: DatasetConfig) -> dict[str, int]:
        return make(described, raw, files, False, lambda line: None)

    first = dataset(text())
    french = dataset(text(source="other.en", target="t.fr"), source="en", target="fr", title="b")
    assert call(first) == {"t": 1}
    for other in (
        dataset(text(target="other.en"), title="b"),  # the same names
        french,  # only one side has the same name
        dataset(text(), title="b"),  # plain lines, which may be other files
    ):
        with pytest.raises(DataError, match=r"is a text of a set, and .* has another text"):
            call(other)
    assert lines(raw / "t.en") == ["t.en"] and not (raw / "t.fr").exists()
    with pytest.raises(DataError, match=r"t\.de was made from another file or with other set"):
        call(dataset(text(commas=True)))
    (raw / "t.de").unlink()
    assert call(first) == {"t": 1}
    for damaged in ("[]", '{"t.de": {}}', '{"t.de": {"digest": 3}}'):
        (raw / ORIGINS).write_text(damaged)
        with pytest.raises(DataError, match=r"origins\.json is damaged"):
            call(first)
    (raw / ORIGINS).unlink()
    with pytest.raises(DataError, match=r"t\.en exists, and no data set made it"):
        call(french)
    assert call(dataset(text(), title="b")) == {}  # complete texts of the user
    (raw / "t.en").rename(raw / "t.fr1")  # a further reference
    with pytest.raises(DataError, match=r"t\.fr1 exists, and no data set made it"):
        call(french)


def test_data_sets_share_texts_from_the_same_file(tmp_path: Path) -> None:
    files, raw = tmp_path / "files", tmp_path / "raw"
    files.mkdir()
    source_set(files / "a.en", {"a": 1})
    for name in ("b.de", "c.fr"):
        (files / name).write_text(sgml(["E01"], {"a": 1}))
    for language, target in (("de", "b.de"), ("fr", "c.fr")):
        described = dataset(
            text(format="segments", source="a.en", target=target),
            source="en",
            target=language,
            title=language,
        )
        assert make(described, raw, files, False, lambda line: None) == {"t": 1}


# Downloads ----------------------------------------------------------------------------------------


class Server:
    """A replacement of the network: it can break off after some bytes, and know no ranges."""

    names_size = True  # in the answer to a range that it does not have
    version: str | None = '"1"'
    knows_versions = True

    def __init__(self, content: bytes, stops_after: int | None = None, ranges: bool = True):
        self.content, self.stops_after, self.ranges = content, stops_after, ranges
        self.starts: list[int] = []

    def __call__(self, request: Any, timeout: float) -> Any:
        start = int(request.get_header("Range", "bytes=0-")[6:-1])
        condition = request.get_header("If-range", self.version)
        changed = self.knows_versions and condition != self.version
        start = start if self.ranges and not changed else 0
        self.starts.append(start)
        headers = Message()
        if self.version:
            headers["ETag"] = self.version
        if start >= len(self.content):
            if self.names_size:
                headers["Content-Range"] = f"bytes */{len(self.content)}"
            raise urllib.error.HTTPError("url", 416, "range", headers, None)
        body = io.BytesIO(self.content[start:][: self.stops_after])
        body.status = 206 if start else 200  # type: ignore[attr-defined]
        headers["Content-Length"] = str(len(self.content) - start)
        if start:
            last = len(self.content) - 1
            headers["Content-Range"] = f"bytes {start}-{last}/{len(self.content)}"
        body.headers = headers  # type: ignore[attr-defined]
        return body


CONTENT = bytes(range(256)) * 40


def archive(**options: Any) -> ArchiveConfig:
    return ArchiveConfig.model_validate({"file": "a.tgz", "url": "https://host/a.tgz", **options})


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_continues(tmp_path, monkeypatch, ranges):
    server = Server(CONTENT, stops_after=1000, ranges=ranges)
    monkeypatch.setattr(fetching.urllib.request, "urlopen", server)
    with pytest.raises(DataError, match=r"it ended after 1,000 of 10,240 bytes.*to continue"):
        fetch(archive(size=len(CONTENT)), tmp_path, lambda line: None)
    assert not (tmp_path / "a.tgz").exists()
    server.stops_after = None
    path = fetch(archive(size=len(CONTENT)), tmp_path, lambda line: None)
    assert path.read_bytes() == CONTENT and server.starts == [0, 1000 if ranges else 0]
    fetch(archive(), tmp_path, lambda line: None)
    assert len(server.starts) == 2, "an existing file is not fetched again"
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize("knows_versions", [True, False])
@pytest.mark.parametrize("version", ['"2"', None, 'W/"1"'])
def test_parts_of_different_versions_are_not_joined(tmp_path, monkeypatch, version, knows_versions):
    server = Server(b"x" * len(CONTENT), stops_after=1000)
    server.version = '"1"' if version else None
    monkeypatch.setattr(fetching.urllib.request, "urlopen", server)
    with pytest.raises(DataError, match="it ended after 1,000"):
        fetch(archive(), tmp_path, lambda line: None)
    server.content, server.version, server.stops_after = CONTENT, version, None
    server.knows_versions = knows_versions
    assert fetch(archive(), tmp_path, lambda line: None).read_bytes() == CONTENT
    assert len(server.starts) == (3 if version and not knows_versions else 2)


@pytest.mark.parametrize("names_size", [True, False])
def test_a_download_that_was_complete_is_checked_and_used(tmp_path, monkeypatch, names_size):
    (tmp_path / "a.tgz.part").write_bytes(CONTENT)
    (tmp_path / "a.tgz.part.version").write_text('"1"')
    server = Server(CONTENT)
    server.names_size = names_size
    monkeypatch.setattr(fetching.urllib.request, "urlopen", server)
    assert fetch(archive(size=len(CONTENT)), tmp_path, print).read_bytes() == CONTENT
    assert server.starts == [len(CONTENT)]


def test_a_part_that_is_longer_than_the_file_is_fetched_again(tmp_path, monkeypatch):
    (tmp_path / "a.tgz.part").write_bytes(b"x" * (len(CONTENT) + 5))
    (tmp_path / "a.tgz.part.version").write_text('"1"')
    monkeypatch.setattr(fetching.urllib.request, "urlopen", Server(CONTENT))
    assert fetch(archive(), tmp_path, lambda line: None).read_bytes() == CONTENT


def test_parallel_downloads_of_a_file_are_one(tmp_path, monkeypatch):
    server = Server(CONTENT)
    monkeypatch.setattr(fetching.urllib.request, "urlopen", server)
    with locked(tmp_path), ThreadPoolExecutor(4) as pool:  # `dataset` may lock the same folder
        paths = list(pool.map(lambda _: fetch(archive(), tmp_path, lambda line: None), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT} and server.starts == [0]


def test_a_broken_answer_of_the_server_is_one_error(tmp_path, monkeypatch):
    def urlopen(request, timeout):
        raise http.client.BadStatusLine("nonsense")

    monkeypatch.setattr(fetching.urllib.request, "urlopen", urlopen)
    with pytest.raises(DataError, match="run the same command again to continue"):
        fetch(archive(), tmp_path, lambda line: None)


def test_a_full_disk_is_not_a_network_error(tmp_path, monkeypatch):
    def append(response, part):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching.urllib.request, "urlopen", Server(CONTENT))
    monkeypatch.setattr(fetching, "_append", append)
    with pytest.raises(
        OutputDiskFull, match=r"a\.tgz\.part cannot be written.*free some disk space"
    ):
        fetch(archive(), tmp_path, lambda line: None)


def test_md5_is_compared_on_a_system_that_refuses_it_for_security(tmp_path, monkeypatch):
    new = hashlib.new

    def of_fips(name, *data, usedforsecurity=True):
        if name == "md5" and usedforsecurity:
            raise ValueError("[digital envelope routines] unsupported")
        return new(name, *data, usedforsecurity=usedforsecurity)

    checksum = new("md5", CONTENT).hexdigest()
    monkeypatch.setattr(hashlib, "new", of_fips)
    monkeypatch.setattr(fetching.urllib.request, "urlopen", Server(CONTENT))
    assert fetch(archive(md5=checksum), tmp_path, lambda line: None).read_bytes() == CONTENT


@pytest.mark.parametrize("options", [{"size": 7}, {"sha256": "0" * 64}, {"md5": "0" * 32}])
def test_another_file_than_the_published_one_is_refused(tmp_path, monkeypatch, options):
    monkeypatch.setattr(fetching.urllib.request, "urlopen", Server(CONTENT))
    with pytest.raises(DataError, match="published"):
        fetch(archive(**options), tmp_path, lambda line: None)
    assert not (tmp_path / "a.tgz").exists()


# Descriptions -------------------------------------------------------------------------------------

# The data set of each config of text in the recipes.
TEXTS = {
    "iwslt14": "iwslt14-de-en",
    "iwslt14_esen": "iwslt14-es-en",
    "iwslt14_roen": "iwslt14-ro-en",
    "iwslt14_tren": "iwslt14-tr-en",
    "wmt14_ende": "wmt14-en-de",
    "wmt14_ende_stanford": "wmt14-en-de-stanford",
    "wmt14_enfr": "wmt14-en-fr",
    "wmt17_enfr": "wmt14-en-fr",
    "wmt16_enro": "wmt16-en-ro",
    "nist_zhen": "nist-zh-en",
    "nist_zhen_bpe": "nist-zh-en",
}


def test_every_data_set_is_described_and_used():
    assert set(TEXTS.values()) == set(table.names())
    for name in table.names():
        result = CliRunner().invoke(main, ["dataset", name])
        assert result.exit_code == 0 and table.read(name).title in result.stdout


@pytest.mark.parametrize(("config", "name"), TEXTS.items())
def test_a_data_set_makes_all_texts_that_its_recipe_reads(config, name):
    described = table.read(name)
    data = yaml.safe_load((RECIPES / "data" / f"{config}.yaml").read_text(encoding="utf-8"))["data"]
    if "source" in data:
        assert (described.source, described.target) == (data["source"], data["target"])
    valid = data["valid"] if isinstance(data["valid"], list) else []
    prefixes = [*data["train"], *valid, *(p for paths in data["test"].values() for p in paths)]
    assert {Path(prefix).name for prefix in prefixes} <= {text.name for text in described.texts}


def test_wrong_calls_are_one_sentence(tmp_path):
    for arguments, message in (
        (["nothing"], "unknown data set 'nothing'; known: iwslt14-de-en, "),
        (["--raw", tmp_path], "--raw needs a data set: fusetk dataset NAME --raw DIR"),
        (
            ["nist-zh-en", "--no-fetch", "--any-data"],
            "--no-fetch and --any-data have no effect without --raw",
        ),
        (["iwslt14-de-en", "--raw", tmp_path, "--files", tmp_path / "x"], "does not exist"),
        (["nist-zh-en", "--raw", tmp_path / "raw", "--no-fetch"], "train.zh is missing in"),
    ):
        assert message in refused("dataset", *map(str, arguments))
