"""Summary of the demo: the model, its scores, and ten translations with their references."""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fusetk.data.text import read_lines


def sentence_to_plot(folder: Path, words: int = 9) -> str:
    """Return a test sentence of about ``words`` words to plot.

    If possible, it has a subordinate clause and a translation that equals the reference.
    """
    sources, translations, references = texts(folder)
    right = [
        source
        for source, translation, reference in zip(sources, translations, references, strict=True)
        if translation == reference
    ]
    clauses = [
        source
        for source in right
        if ", " in source and ("hat" in source.split() or "hat." in source.split())
    ]
    return min(clauses or right or sources, key=lambda source: abs(len(source.split()) - words))


def texts(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return German test sentences, their translations and their references."""
    sources, translations, references = (
        list(read_lines(folder / name)) for name in ("raw/test.de", "test.out.en", "raw/test.en")
    )
    return sources, translations, references


def facts(folder: Path, seconds: int) -> list[tuple[str, str]]:
    """Return the names and values of the summary's lines."""
    manifest = json.loads((folder / "data" / "manifest.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in read_lines(folder / "run" / "metrics.jsonl")]
    speeds = sorted(record["tokens_per_second"] for record in records if record["kind"] == "train")
    speed = f", {speeds[len(speeds) // 2]:,.0f} target tokens/s" if speeds else ""
    splits = manifest["splits"]
    pairs = " / ".join(
        f"{splits[split]['pairs_out']:,}" for split in ("train", "valid", "test.demo")
    )
    scores = json.loads((folder / "score.json").read_text(encoding="utf-8"))["scores"]
    [bleu] = [score for score in scores if score["metric"] == "sacrebleu"]
    return [
        ("model", model(folder)),
        ("text", f"German to English, {pairs} pairs for training, validation, test"),
        (
            "training",
            f"{records[-1]['update']:,} updates, {records[-1]['epoch']:.1f} epochs{speed}",
        ),
        (
            "BLEU on test",
            f"[bold green]{bleu['value']:.1f}[/] (sacreBLEU, {bleu['signature']})",
        ),
        ("time of this call", f"{seconds // 60} min {seconds % 60} s"),
        ("run", f"{folder}/run"),
        ("translations", f"{folder}/test.out.en"),
        ("attention", f"{folder}/attention.png"),
        ("curves", f"{folder}/curves.png"),
    ]


def model(folder: Path) -> str:
    """Describe the trained model, with the number of its parameters."""
    from fusetk import system

    loaded = system.load_model(max((folder / "run" / "checkpoints").glob("average-*")))
    config: Any = loaded.recipe.model
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    layers = f"{config.encoder.layers}+{config.decoder.layers} layers"
    return f"{config.kind}, {layers}, width {config.width}, {count:,} parameters"


def show(folder: Path, seconds: int, samples: int = 10) -> None:
    """Print the summary and the translations."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(facts_table("fusetk demo", facts(folder, seconds)))
    sources, translations, references = texts(folder)
    chosen = random.Random(1).sample(range(len(sources)), samples)
    table = Table(
        "German",
        "translation",
        "reference",
        title="held-out sentences",
        title_justify="left",
        box=box.SIMPLE,
        show_lines=True,
    )
    for i in chosen:
        colour = "green" if translations[i] == references[i] else "yellow"
        table.add_row(sources[i], f"[{colour}]{translations[i]}[/]", references[i])
    console.print(table)
    console.print(f"attention heatmap: {folder}/attention.png", soft_wrap=True, highlight=False)


def facts_table(title: str, named_values: list[tuple[str, str]]) -> Table:
    """Return a table of two columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in named_values:
        table.add_row(name, value)
    return table


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="print a summary of the demo")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=int, default=0, help="duration of the demo")
    parser.add_argument("--sentence", action="store_true", help="only print the sentence to plot")
    options = parser.parse_args()
    if options.sentence:
        print(sentence_to_plot(options.folder))
    else:
        show(options.folder, options.seconds)


if __name__ == "__main__":
    main()
