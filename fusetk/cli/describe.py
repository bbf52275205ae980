"""``fusetk describe``."""

from typing import TYPE_CHECKING

import click

from fusetk.cli.options import config_argument, set_option
from fusetk.cli.parameters import all_of
from fusetk.cli.recipes import load_recipe
from fusetk.cli.tables import print_json, print_warnings
from fusetk.cli.vocabulary_options import VOCABULARY_OPTIONS, given_sizes
from fusetk.config import outside_kinds
from fusetk.reporting.parameters import count_parameters, matches_printed, vocabulary_sizes

if TYPE_CHECKING:
    from fusetk.papers import PaperConfig

WORDS = 20  # size of the vocabularies of a model that is verified
EXAMPLE = "Example: fusetk describe recipes/mlrf/iwslt14_deen/both_ffn_sa.yaml"


@click.command("describe", epilog=EXAMPLE)
@config_argument
@set_option
@all_of(VOCABULARY_OPTIONS)
@click.option(
    "--config",
    "only_config",
    is_flag=True,
    help="Print only the resolved CONFIG, with all defaults, as a config that other commands read.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object with config, vocabulary, parameters and parts.",
)
def command(
    config: str,
    overrides: tuple[str, ...],
    src_vocab_size: int | None,
    tgt_vocab_size: int | None,
    only_config: bool,
    as_json: bool,
) -> None:
    """Print the parameters of each part of the model of CONFIG.

    --config prints the resolved config instead. Vocabulary sizes are those of the prepared data, if
    they exist, or else of the paper whose system the config describes. The number that the paper
    prints is compared with the number that is counted with the vocabulary sizes of the recipe. A
    model with classes outside fusetk is verified, as before a training.
    """
    from fusetk import sections

    if only_config and as_json:
        raise click.UsageError("--config and --json exclude each other: omit one of them")
    recipe = load_recipe(config, overrides)
    if only_config:
        click.echo(sections.dump(recipe), nl=False)
        return
    sizes = given_sizes(src_vocab_size, tgt_vocab_size) or vocabulary_sizes(recipe)
    parts = count_parameters(recipe, sizes)
    if kinds := sorted(outside_kinds(recipe.model.model_dump())):
        from fusetk.system import build
        from fusetk.training.verify import verify
        from fusetk.training.verify_construction import check_construction

        model = build(recipe, WORDS, WORDS)
        check_construction(model, lambda: build(recipe, WORDS, WORDS))
        print_warnings(verify(model, WORDS, WORDS, kinds))
    total = sum(parts.values())
    paper = recipe.paper
    paper_total = None
    if paper and paper.vocabulary:
        paper_total = sum(count_parameters(recipe, paper.vocabulary).values())
    if as_json:
        document = {
            "config": recipe.model_dump(mode="json"),
            "vocabulary": sizes,
            "parameters": total,
            "parts": parts,
            "parameters_at_paper_vocabulary": paper_total,
        }
        print_json(document)
        return
    click.echo(f"with {sizes[0]:,} source and {sizes[1]:,} target entries:")
    for name, count in [*parts.items(), ("total", total)]:
        click.echo(f"{name:<24}{count:>14,}")
    if paper:
        click.echo(f"\n{paper.table}, {paper.row or 'all rows'}")
        click.echo(_comparison(paper, total if paper_total is None else paper_total))
        click.echo(f"BLEU printed: {_printed_bleu(paper)}")
        if paper.note:
            click.echo(f"note: {paper.note}")


def _printed_bleu(paper: "PaperConfig") -> str:
    if isinstance(paper.bleu, dict):
        return ", ".join(f"{name} {value:.2f}" for name, value in paper.bleu.items())
    return "none" if paper.bleu is None else f"{paper.bleu:.2f}"


def _comparison(paper: "PaperConfig", count: int) -> str:
    text = f"parameters: {paper.parameters or 'none'} printed, {count:,} here"
    if paper.vocabulary:
        source, target = paper.vocabulary
        text += f" with a vocabulary of {source:,} and {target:,}"
    if paper.parameters and not matches_printed(paper.parameters, count):
        text += f"; the printed number does not match, {paper.counted or 'another number'} does"
    return text
