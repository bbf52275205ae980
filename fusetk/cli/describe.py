"""``fusetk describe``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusetk.cli.options import config_argument, set_option

if TYPE_CHECKING:
    from fusetk.recipe import PaperConfig, Recipe

EXAMPLE = "Example: fusetk describe recipes/mlrf/iwslt14_deen/both_ffn_sa.yaml"


@click.command("describe", epilog=EXAMPLE)
@config_argument
@set_option
@click.option(
    "--src-vocab-size",
    type=click.IntRange(5),
    help="Source entries, special ones counted; the prepared data's by default.",
)
@click.option(
    "--tgt-vocab-size",
    type=click.IntRange(5),
    help="Target entries; as the source's where only one is given.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="A JSON object with config, vocabulary, parameters and parts.",
)
def command(
    config: str,
    overrides: tuple[str, ...],
    src_vocab_size: int | None,
    tgt_vocab_size: int | None,
    as_json: bool,
) -> None:
    """Print the resolved CONFIG and the parameters of its model, part by part.

    The vocabulary is that of the prepared data; where there are none, that of the paper whose system the config is. What
    the paper prints is compared with a count at the paper's own vocabulary.
    """
    from fusetk import config as configs
    from fusetk import recipe

    found = recipe.load(config, overrides)
    src_vocab_size = src_vocab_size or tgt_vocab_size
    sizes = (
        (src_vocab_size, tgt_vocab_size or src_vocab_size)
        if src_vocab_size
        else vocabulary_sizes(found)
    )
    parts = count_parameters(found, sizes)
    total = sum(parts.values())
    paper = found.paper
    theirs = (
        sum(count_parameters(found, paper.vocabulary).values())
        if paper and paper.vocabulary
        else None
    )
    if as_json:
        document = {
            "config": found.model_dump(mode="json"),
            "vocabulary": sizes,
            "parameters": total,
            "parts": parts,
        }
        click.echo(json.dumps({**document, "parameters_at_paper_vocabulary": theirs}, indent=1))
        return
    click.echo(configs.dump(found))
    click.echo(f"with {sizes[0]:,} source and {sizes[1]:,} target entries:")
    for name, count in [*parts.items(), ("total", total)]:
        click.echo(f"{name:<24}{count:>14,}")
    if paper:
        click.echo(f"\n{paper.table}, {paper.row or 'all rows'}")
        click.echo(_comparison(paper, theirs if theirs is not None else total))
        click.echo(f"BLEU printed: {paper.bleu if paper.bleu is not None else 'none'}")
        if paper.note:
            click.echo(f"note: {paper.note}")


def _comparison(paper: "PaperConfig", count: int) -> str:
    text = f"parameters: {paper.parameters or 'none'} printed, {count:,} here"
    if paper.vocabulary:
        text += (
            f" with the paper's vocabulary of {paper.vocabulary[0]:,} and {paper.vocabulary[1]:,}"
        )
    if paper.parameters and not agree(paper.parameters, count):
        text += f"; what is printed does not add up, {paper.counted or 'another number'} does"
    return text


def agree(printed: str, count: int) -> bool:
    """Whether ``count`` is what was printed in millions, such as 10.97M: rounded, or cut after the last digit."""
    digits = len(printed.removesuffix("M").partition(".")[2])
    scale = 10 ** (6 - digits)
    return round(float(printed.removesuffix("M")) * 10**digits) in (
        round(count / scale),
        count // scale,
    )


def vocabulary_sizes(recipe: "Recipe") -> tuple[int, int]:
    """Vocabulary sizes of the prepared data, or else of the paper."""
    from fusetk.data.pipeline import Pipeline
    from fusetk.errors import ConfigError
    from fusetk.runs import TEXT

    text = Path(recipe.data.folder) / TEXT
    if text.is_dir():
        pipeline = Pipeline.load(text)
        return len(pipeline.source_vocab), len(pipeline.target_vocab)
    if recipe.paper and recipe.paper.vocabulary:
        return recipe.paper.vocabulary
    raise ConfigError(
        f"{recipe.data.folder} is not prepared yet, so the vocabulary sizes are unknown: give --src-vocab-size and --tgt-vocab-size"
    )


def count_parameters(recipe: "Recipe", sizes: tuple[int, int]) -> dict[str, int]:
    """Parameters by part (two levels of the module tree at most), each counted where it first stands."""
    import torch

    from fusetk import system

    parts: dict[str, int] = {}
    with torch.device("meta"):  # shapes without memory
        model = system.build(recipe, *sizes)
    layers = set(model.layers())
    stacks = {name.rpartition(".")[0] for name, module in model.named_modules() if module in layers}
    for name, parameter in model.named_parameters():
        part = ".".join(name.split(".")[:2])
        own_part = part.rpartition(".")[2] in ("fuse", "connect", "tokens", "positions")
        part = part if own_part or part in stacks else name.split(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts
