"""Manifests of prepared folders, written without a preparation."""

import json
from pathlib import Path
from typing import Any

from fusetk.data import manifest


def write_manifest(folder: Path, **sections: Any) -> None:
    """Write a manifest with some sections; the others are empty."""
    empty = {name: {} for name in manifest.CompleteManifest.model_fields}
    content = {"format": manifest.FORMAT, **empty, **sections}
    (folder / manifest.NAME).write_text(json.dumps(content))
