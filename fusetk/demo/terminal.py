"""The summary of the demo for the terminal: facts, scores, translations and the layer weights."""

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fusetk.demo.layers import LayerWeights, layer_weights
from fusetk.demo.results import (
    DemoFiles,
    Translated,
    examples,
    facts,
    next_commands,
    trained_models,
)

EXAMPLES = 5
METRIC_LABELS = {"sacrebleu": "BLEU", "chrf": "chrF"}


class SummaryConsole(Console):
    """A console that raises BrokenPipeError for a closed pipe, as the output of other commands."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(files: DemoFiles, seconds: int, console: Console) -> None:
    """Print the summary. ``seconds`` is the duration of the demo."""
    console.print(facts_table([*facts(files), ("time", f"{seconds // 60} min {seconds % 60} s")]))
    console.print(score_table(files))
    console.print(translation_table(examples(files, EXAMPLES)))
    if files.layers:
        weights = layer_weights(files)
        console.print("share of each decoder layer in %, mean of the hops, while translating")
        console.print(f"“{weights.source}”", highlight=False, markup=False)
        console.print(layer_table(weights))
    for name, path in (
        ("layer weights", files.layers),
        ("attention", files.attention),
        ("training", files.curves),
    ):
        if path:
            console.print(Text(f"{name}:".ljust(16) + str(path)), soft_wrap=True)
    console.print(Text(f"all on a page:  {files.page}", style="bold"), soft_wrap=True)
    console.print("\nnext:")
    for comment, command in next_commands(files):
        line = Text(f"  # {comment}\n", style="dim").append(f"  {command}", style="not dim")
        console.print(line, soft_wrap=True)


def facts_table(named_values: list[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    table = Table(Column(style="bold"), Column(overflow="fold"), box=box.SIMPLE, show_header=False)
    for name, value in named_values:
        table.add_row(name, Text(value))
    return table


def score_table(files: DemoFiles) -> Table:
    """Return a table with the scores of each trained model of the demo."""
    numbers = [Column(name, justify="right") for name in ("parameters", *METRIC_LABELS.values())]
    table = Table(Column("model"), *numbers, box=box.SIMPLE)
    for model in trained_models(files):
        scores = [f"{model.scores[metric]:.1f}" for metric in METRIC_LABELS]
        table.add_row(model.title, f"{model.parameters:,}", *(Text(s, "bold") for s in scores))
    return table


def translation_table(sentences: list[Translated]) -> Table:
    """Return a table of sentences with their translations; wrong ones also have the reference."""
    table = Table("German", "translation", box=box.SIMPLE, show_lines=True)
    for sentence in sentences:
        translation = Text()
        translation.append(sentence.translation, style="green" if sentence.is_right else "yellow")
        if not sentence.is_right:
            translation.append(f"\nright: {sentence.reference}", style="dim")
        table.add_row(Text(sentence.source), translation)
    return table


def layer_table(weights: LayerWeights) -> Table:
    """Return a table of the percentages with which the decoder's fusion reads its layers."""
    columns = [Column(layer, justify="right") for layer in weights.layers]
    table = Table(
        Column("after", justify="right"),
        *columns,
        box=box.SIMPLE,
        padding=(0, 0),
    )
    for token, row in zip(weights.tokens, weights.shares, strict=True):
        table.add_row(Text(f"{token} "), *(_shaded(float(share)) for share in row))
    return table


def _shaded(share: float) -> Text:
    """Return a percentage on a background that is darker for a larger share."""
    import matplotlib

    red, green, blue, _ = matplotlib.colormaps["Blues"](share, bytes=True)
    ink = "white" if share > 0.5 else "black"
    return Text(f" {100 * share:3.0f} ", style=f"{ink} on rgb({red},{green},{blue})")
