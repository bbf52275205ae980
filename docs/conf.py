"""Settings of the site that `make docs` builds from the Markdown files of this folder."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# Address of the files of the repository, ending in /. A release fills it. Without it, links to
# files outside this folder are plain text on the site.
REPOSITORY = ""

# The pages of the site: the index page of a folder, the titles of its menus, and their pages.
MENUS = {
    "index": {
        "Start": "install tutorial faq migration/index",
        "Use": "config config-keys data training devices decoding explore python metrics plots "
        "commands",
        "Models": "fusions/index papers reproduction recipes benchmarks extending",
    },
    "migration/index": {"": "fairseq marian opennmt sockeye"},
    "fusions/index": {
        "": "average ffn attention linear aggregation groups linear-connections dense "
        "depth-weighted mudd cross hyper attention-residual value-residual laurel scaled attend "
        "coordinated recurrent"
    },
}

project = "fusetk"
copyright = "the fusetk authors"
release = next(
    line.split('"')[1]
    for line in (ROOT / "fusetk" / "__init__.py").read_text(encoding="utf-8").splitlines()
    if line.startswith("__version__")
)
version = release

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nitpicky = True
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"fusetk {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
pygments_style = "default"
pygments_dark_style = "monokai"


def _link_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace links to files outside this folder by links to the repository."""
    folder = (DOCS / page).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        address = f"{REPOSITORY}{target.relative_to(ROOT)}{link[3] or ''}"
        return f"[{link[1]}]({address})" if REPOSITORY else link[1]

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]+)(#[^)]*)?\)", replace, source[0])


def _mark_targets(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace anchors in HTML by those of MyST, so that links to them are checked."""
    source[0] = re.sub(r'<a id="([a-z0-9-]+)"></a>', r"(\1)=", source[0])


def _add_menus(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the menus of an index page, so that the Markdown files have no directives."""
    for title, pages in MENUS.get(page, {}).items():
        options = f":caption: {title}\n" if title else ""
        entries = pages.replace(" ", "\n")
        source[0] += f"\n```{{toctree}}\n:hidden:\n{options}\n{entries}\n```\n"


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f"<div class='math'>{tex2mathml(node.astext(), as_block=True)}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the functions above. Browsers draw MathML without a script from the network."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("source-read", _link_repository)
    app.connect("source-read", _mark_targets)
    app.connect("source-read", _add_menus)
