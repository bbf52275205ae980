"""Downloads that can be resumed, with sizes and checksums."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path

from fusetk.data.text import WRITE_ADVICE, cannot_write
from fusetk.datasets.table import ArchiveConfig
from fusetk.errors import DataError
from fusetk.files import BLOCK, checksum, locked_file

RANGE_NOT_SATISFIABLE = 416


def fetch(archive: ArchiveConfig, folder: Path, report: Callable[[str], None]) -> Path:
    """Return the file of an archive in the folder; download it if it is missing.

    The archive must have an address. An interrupted download continues where it stopped. Raises
    DataError if the file cannot be downloaded or written, or is not the published file.
    """
    path = folder / archive.file
    assert archive.url is not None
    folder.mkdir(parents=True, exist_ok=True)
    with locked_file(folder / f".{archive.file}.lock"):
        if path.is_file():  # perhaps another process downloaded it
            return path
        part = path.with_name(f"{path.name}.part")
        report(f"{archive.url} -> {path}")
        try:
            _download(archive.url, part)
        except (OSError, http.client.HTTPException) as error:
            # The disk failed, not the network.
            if isinstance(error, OSError) and error.errno in WRITE_ADVICE:
                raise cannot_write(part, error) from None
            raise DataError(
                f"{archive.url} cannot be downloaded ({error}): "
                f"run the same command again to continue, or put the file into {folder}"
            ) from None
        check(archive, part)
        part.rename(path)
        _version_file(part).unlink(missing_ok=True)
    return path


def _download(url: str, part: Path) -> None:
    """Append the bytes that ``part`` lacks of the file at the address. Raises OSError.

    The part is downloaded again if the file at the address may have changed since.
    """
    version_file = _version_file(part)
    version = version_file.read_text(encoding="utf-8") if version_file.exists() else ""
    start = part.stat().st_size if part.exists() and version else 0
    headers = {"Range": f"bytes={start}-", "If-Range": version} if start else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            resumed = start > 0 and response.status == 206
            if not resumed or _continues(response.headers, start, version):
                if not resumed:
                    part.unlink(missing_ok=True)
                    version_file.write_text(_version(response.headers), encoding="utf-8")
                _append(response, part)
                return
    except urllib.error.HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE:
            raise
        content_range = error.headers.get("Content-Range", "") if error.headers else ""
        size = content_range.rpartition("/")[2]
        if not size.isdecimal() or int(size) == start:  # the file has all bytes already
            return
    part.unlink()  # it is not a part of this file
    _download(url, part)


def _append(response: http.client.HTTPResponse, part: Path) -> None:
    """Append the body of a response to a file. Raises OSError if the body is incomplete."""
    received = 0
    with open(part, "ab") as file:
        while block := response.read(BLOCK):
            received += file.write(block)
    expected = response.headers.get("Content-Length")
    if expected is not None and received != int(expected):
        raise OSError(f"it ended after {received:,} of {int(expected):,} bytes")


def _version_file(part: Path) -> Path:
    """Return the path of the file that has the version of an incomplete file."""
    return part.with_name(f"{part.name}.version")


def _version(headers: Message) -> str:
    """Return the ETag or the date of a file for `If-Range`; empty without them."""
    tag = headers.get("ETag", "")
    weak = tag.startswith("W/")  # equal for files that are not the same byte by byte
    return headers.get("Last-Modified", "") if weak or not tag else tag


def _continues(headers: Message, start: int, version: str) -> bool:
    """Whether a partial answer has the bytes from ``start`` of this version."""
    first = headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    name = "Last-Modified" if version.endswith("GMT") else "ETag"
    return first == str(start) and headers.get(name, version) == version


def check(archive: ArchiveConfig, path: Path) -> None:
    """Raise DataError if a file does not have the published size or checksum."""
    size = path.stat().st_size
    advice = "delete it and fetch it again, or compare it with the file of the publisher"
    if archive.size is not None and size != archive.size:
        raise DataError(
            f"{path} has {size:,} bytes, but the published file has {archive.size:,}: {advice}"
        )
    for name, expected in (("sha256", archive.sha256), ("md5", archive.md5)):
        if expected is not None and checksum(path, name) != expected:
            raise DataError(f"{path} does not have the published {name} {expected}: {advice}")
