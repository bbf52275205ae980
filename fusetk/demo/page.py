"""The page of the demo: one HTML file without external resources."""

import base64
import html
from pathlib import Path

from fusetk.demo.results import (
    DemoFiles,
    Translated,
    decoder_fusion,
    examples,
    facts,
    next_commands,
    sentence_to_plot,
    trained_models,
)
from fusetk.demo.terminal import METRIC_LABELS
from fusetk.files import write_if_changed
from fusetk.plotting.html import insert

TEMPLATE = Path(__file__).with_name("page.html")
EXAMPLES = 12

FUSION = (
    "In a Transformer, the decoder returns its highest layer only. Layer fusion returns a "
    "combination of all layers."
)
DEC_SA = (
    "In this model the combination is Dec-SA (Multi-layer Representation Fusion, Wang et al. "
    "2018): at each word, a small network computes the weights of the layers, in one or several "
    "hops."
)
NO_FUSION = "This model is a Transformer: its decoder returns its highest layer only."
LAYERS = (
    "Layer weights. Each column is a token that the decoder reads, each row is a layer; l0 is the "
    "word embedding."
)
HOPS = " Each column of a hop sums to 1."
ATTENTION = (
    "Attention. Each row is a token that the decoder predicts, each column is a source token that "
    "it attends to. Each row sums to 1."
)
CURVES = (
    "Training. Loss and perplexity on the training and the validation text, and accuracy on the "
    "validation text."
)


def write_page(files: DemoFiles) -> None:
    """Write the page with the pictures, scores, translations and the next commands.

    Raises OSError if it cannot be written.
    """
    write_if_changed(files.page, render(files).encode())


def render(files: DemoFiles) -> str:
    """Return the content of the page."""
    source, target = sentence_to_plot(files)
    pictures = [(files.attention, ATTENTION), (files.curves, CURVES)]
    if files.layers:
        hops = HOPS if decoder_fusion(files) == "attention" else ""
        pictures.insert(0, (files.layers, LAYERS + hops))
    parts = {
        "fusion": html.escape(_fusion(files)),
        "facts": "".join(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>\n"
            for name, value in facts(files)
        ),
        "scores": _scores(files),
        "source": html.escape(source),
        "target": html.escape(target),
        "pictures": "".join(_picture(path, caption) for path, caption in pictures),
        "translations": "".join(map(_translation, examples(files, EXAMPLES))),
        "commands": "\n\n".join(
            f'<span class="comment"># {html.escape(comment)}</span>\n{html.escape(command)}'
            for comment, command in next_commands(files)
        ),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return insert(template, parts)


def _fusion(files: DemoFiles) -> str:
    """Return sentences about the fusion of the model."""
    kind = decoder_fusion(files)
    if kind == "attention":
        return f"{FUSION} {DEC_SA}"
    return f"{FUSION} In this model the fusion is `{kind}`." if kind else NO_FUSION


def _picture(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    alt = html.escape(caption, quote=True)
    return (
        f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>\n"
    )


def _scores(files: DemoFiles) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("model", "parameters", *METRIC_LABELS.values()))
    rows = ""
    for model in trained_models(files):
        numbers = [
            f"{model.parameters:,}",
            *(f"{model.scores[metric]:.1f}" for metric in METRIC_LABELS),
        ]
        cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
        rows += f"<tr><td>{html.escape(model.title)}</td>{cells}</tr>\n"
    return f"<tr>{heads}</tr>\n{rows}"


def _translation(sentence: Translated) -> str:
    result = "right" if sentence.is_right else "wrong"
    cells = [html.escape(sentence.source), html.escape(sentence.translation)]
    if not sentence.is_right:
        cells[1] += f'<br><span class="reference">right: {html.escape(sentence.reference)}</span>'
    texts = f'<td lang="de">{cells[0]}</td><td lang="en">{cells[1]}</td>'
    return f'<tr><td class="{result}">{result}</td>{texts}</tr>\n'
