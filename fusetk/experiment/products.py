"""The record of the files that an experiment made, ``products.json`` in its run folder.

A file is made again if it was changed, or if one of its inputs changed.
"""

import json
from pathlib import Path
from typing import Any

from fusetk.files import checksum, digest, read_json, replace_file

NAME = "products.json"


class Products:
    """The files that were made in a run folder, with checksums of their inputs."""

    def __init__(self, run: Path):
        self.path = run / NAME
        records = read_json(self.path)
        self.records: dict[str, Any] = records if isinstance(records, dict) else {}

    def up_to_date(self, file: Path, inputs: Any) -> bool:
        """Whether the file is unchanged since it was made from these inputs."""
        record = self.records.get(self._name(file))
        return file.is_file() and record == _record(file, inputs)

    def add(self, file: Path, inputs: Any) -> None:
        """Record a file that was made from inputs. Raises OSError if this cannot be written."""
        self.records[self._name(file)] = _record(file, inputs)
        replace_file(self.path, json.dumps(self.records, indent=1) + "\n")

    def _name(self, file: Path) -> str:
        return str(file.relative_to(self.path.parent))


def _record(file: Path, inputs: Any) -> dict[str, str]:
    return {"inputs": digest(inputs), "sha256": checksum(file)}
