"""The page of ``fusetk explore``: one HTML file without external resources."""

import base64
import hashlib
from functools import cache
from pathlib import Path

from fusetk.plotting import html
from fusetk.plotting.html import insert

FOLDER = Path(__file__).parent


@cache
def _parts() -> dict[str, str]:
    """Return the style and the script: those of the panels, then those of the page."""
    parts = {}
    for name, ending in (("style", "css"), ("script", "js")):
        files = (html.FOLDER / f"panels.{ending}", FOLDER / f"explore.{ending}")
        parts[name] = "\n" + "".join(path.read_text(encoding="utf-8") for path in files)
    parts["script"] = '\n"use strict";' + parts["script"]
    return parts


@cache
def page() -> str:
    """Return the HTML of the page."""
    return insert((FOLDER / "explore.html").read_text(encoding="utf-8"), _parts())


@cache
def page_headers() -> dict[str, str]:
    """Return the headers of the page.

    The browser runs only this script and this style, and connects only to the service.
    """
    hashes = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for name, text in _parts().items()
    }
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; "
        f"script-src 'sha256-{hashes['script']}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
