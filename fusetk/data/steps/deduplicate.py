"""Removal of repeated training pairs."""

from hashlib import blake2b
from typing import Literal

from fusetk.data.steps.base import UniquePairStep


class Deduplicate(UniquePairStep):
    """Drop training pairs that equal an earlier pair at this step."""

    step: Literal["deduplicate"]

    reason = "duplicate"

    def key(self, source: str, target: str) -> bytes:
        return blake2b(f"{source}\n{target}".encode(), digest_size=16).digest()
