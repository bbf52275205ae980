"""Small files in the formats of the published data sets, for `fusetk dataset --files`.

The files have the traps of the real ones: lines of tags, entities, SGML without quotes and in
capitals, byte order marks, Windows line ends, typographic apostrophes, and packed members.
"""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

from fusetk.datasets.make import PACKED
from fusetk.datasets.table import DatasetConfig, TextConfig

PAIRS = {"lines": 230, "wit3": 230, "segments": 6}
TALKS = PAIRS["wit3"] // 10
REFERENCES = 4  # of NIST's test sets
WORDS = {
    "de": "das Haus ist alt und der Hund schläft heute".split(),
    "en": "the house is old and the dog sleeps today".split(),
    "es": "la casa es vieja y el perro duerme hoy".split(),
    "fr": "la maison est vieille et le chien dort aujourd'hui".split(),
    "ro": "casa este veche şi câinele doarme astăzi în ţară".split(),
    "tr": "ev çok eski ve köpek bugün bahçede uyuyor işte".split(),
    "zh": "房子 很 旧 而且 狗 今天 在 睡觉 了".split(),
}


def sentence(language: str, i: int, mark: str = "") -> str:
    words = WORDS[language]
    chosen = [words[(i * 7 + j * (1 + i % 4)) % len(words)] for j in range(3 + i % 5)]
    text = f"{' '.join(chosen)} {i % 30} {mark}".strip()
    return text if language == "zh" else f"{text[0].upper()}{text[1:]}."


def lines(language: str) -> str:
    """Return a text with Windows line ends and a byte order mark."""
    rows = [sentence(language, i) for i in range(PAIRS["lines"])]
    return "\ufeff" + "".join(f"{row}\r\n" for row in rows)


def talks(language: str) -> str:
    """Return training text of WIT3: the tags of a talk precede every ten sentences."""
    rows = []
    for i in range(PAIRS["wit3"]):
        if i % 10 == 0:
            rows += [
                f"<url>http://a/{i}</url>",
                "<keywords>a, b</keywords>",
                f"<talkid>{i}</talkid>",
            ]
            rows += [f"<reviewer href='x'>A & B {i}</reviewer>"]
        title = f"<title>{sentence(language, i)}</title>"
        rows.append(title if i % 10 == 0 else f" {sentence(language, i)} ")
    return "".join(f"{row}\n" for row in rows)


def segments(language: str, text: TextConfig, references: int = 1) -> str:
    """Return XML with quotes, or SGML without them and in capitals, with entities."""
    quote, tag = ('"', "seg") if "xml" in f"{text.source}{text.target}" else ("", "SEG")
    documents = []
    for number in range(references):
        marked = [
            sentence(language, i, f"it\u2019s &lt;{number}&gt;") for i in range(PAIRS["segments"])
        ]
        body = "".join(
            f"<{tag} id={quote}{i}{quote}> {line} </{tag}>\n" for i, line in enumerate(marked, 1)
        )
        documents.append(
            f"<DOC docid={quote}a{quote} sysid={quote}r{number}{quote}>\n{body}</DOC>\n"
        )
    return f"<refset setid=x>\n{''.join(documents)}</refset>\n"


def write_files(dataset: DatasetConfig, folder: Path) -> None:
    """Write the files of a data set into a folder.

    Files of archives without published size and checksum are packed, others are unpacked.
    """
    files: dict[str, str] = {}
    for text in dataset.texts:
        sides = (text.source, dataset.source), (text.target, dataset.target)
        for number, (pattern, language) in enumerate(sides):
            name = pattern.replace("*", "sgm" if pattern.endswith(".*") else "2")
            if text.format == "segments":
                four = number == 1 and dataset.source == "zh"
                files[name] = segments(language, text, REFERENCES if four else 1)
            else:
                files[name] = (talks if text.format == "wit3" else lines)(language)
    packed = [
        archive.file
        for archive in dataset.archives
        if archive.file.endswith(PACKED) and not (archive.size or archive.sha256 or archive.md5)
    ]
    for number, archive in enumerate(packed):
        _pack(folder / archive, {name: files.pop(name) for name in [*files][number :: len(packed)]})
    for name, content in files.items():
        (folder / name).write_bytes(content.encode())


def _pack(path: Path, members: dict[str, str]) -> None:
    """Write an archive. Every third member is packed itself."""
    contents = {
        f"x/{name}{'' if i % 3 else '.gz'}": text.encode()
        if i % 3
        else gzip.compress(text.encode())
        for i, (name, text) in enumerate(members.items())
    }
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in contents.items():
                zipped.writestr(name, content)
        return
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
