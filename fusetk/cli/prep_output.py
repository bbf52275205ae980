"""Output of ``fusetk prep``: the table of the splits, and a warning."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from fusetk.cli.common_options import print_warning
from fusetk.cli.tables import print_complete
from fusetk.data.pipeline import SIDES
from fusetk.data.prepare import PreparedFolder

LONG_SENTENCE = 1000  # tokens; a longer training sentence is a warning


def warn_of_long_sentences(prepared: PreparedFolder) -> None:
    """Print a warning for each side with a training sentence longer than ``LONG_SENTENCE``."""
    for side in SIDES:
        longest = prepared.splits["train"][side].get("longest", 0)
        if longest > LONG_SENTENCE:
            language = prepared.data["languages"][side]
            print_warning(
                f"the longest {language} sentence of train has {longest:,} tokens, so training may "
                "need much memory and time: drop long pairs by the step "
                "{step: filter, max_length: 175} in data.steps"
            )


def print_table(prepared: PreparedFolder) -> None:
    """Print a table of the splits, and the sizes of the vocabularies."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    languages = prepared.data["languages"]
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("split", "pairs in", "out", "dropped"):
        table.add_column(heading, justify="left" if heading in ("split", "dropped") else "right")
    for side in SIDES:
        table.add_column(f"{languages[side]} tokens", justify="right")
        table.add_column("unknown", justify="right")
    for name, counts in prepared.splits.items():
        dropped = [f"{count:,} {reason}" for reason, count in counts["dropped"].items()]
        if counts.get("to_valid"):
            dropped.append(f"({counts['to_valid']:,} to valid)")
        cells = [
            escape(name),
            f"{counts['pairs_in']:,}",
            f"{counts['pairs_out']:,}",
            "\n".join(dropped) or "none",
        ]
        for side in SIDES:
            cells += [f"{counts[side]['tokens']:,}", f"{counts[side]['unknown_rate']:.2%}"]
        table.add_row(*cells)
        if "segmentations" in counts:
            table.add_row(*_dropout_row(name, counts))
    print_complete(table, stderr=True)
    console = Console(stderr=True)
    sizes = prepared.data["vocabulary"]
    kind = "joint vocabulary" if sizes["joint"] else "vocabularies"
    entries = [f"{languages[side]} {sizes[side]:,}" for side in SIDES]
    both = f"{sizes['source']:,}" if sizes["joint"] else ", ".join(entries)
    console.print(f"{kind}: {both} entries, 4 of them special", highlight=False)


def _dropout_row(name: str, counts: Mapping[str, Any]) -> list[str]:
    """Return the row of the means of the segmentations by BPE dropout.

    Percentages after the numbers of tokens compare them with the text without dropout.
    """
    cells = [f"{name}, BPE dropout", "", "", ""]
    for side in SIDES:
        tokens, unknown = (
            mean(segmentation[side][key] for segmentation in counts["segmentations"])
            for key in ("tokens", "unknown_rate")
        )
        more = tokens / max(counts[side]["tokens"], 1) - 1
        cells += [f"{tokens:,.0f} ({more:+.1%})", f"{unknown:.2%}"]
    return cells
