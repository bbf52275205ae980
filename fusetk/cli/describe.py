"""``fusetk describe``."""

import json
from pathlib import Path
from typing import Any

import click

from fusetk.cli.options import config_argument, set_option

EXAMPLE = "Example: fusetk describe recipes/mlrf/iwslt14_deen/baseline_3layer.yaml --src-vocab-size 8389 --tgt-vocab-size 6428"


@click.command("describe", epilog=EXAMPLE)
@config_argument
@set_option
@click.option("--src-vocab-size", type=click.IntRange(5), help="Source entries, special ones counted; the prepared data's by default.")
@click.option("--tgt-vocab-size", type=click.IntRange(5), help="Target entries; as the source's where only one is given.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object with config, parameters (total) and parts.")
def command(config: str, overrides: tuple[str, ...], src_vocab_size: int | None, tgt_vocab_size: int | None, as_json: bool) -> None:
    """Print the resolved CONFIG and the parameters of its model, part by part."""
    from fusetk import config as configs
    from fusetk import recipe, run
    from fusetk.data.pipeline import Pipeline
    from fusetk.errors import ConfigError

    found = recipe.load(config, overrides)
    src_vocab_size = src_vocab_size or tgt_vocab_size
    if src_vocab_size is None:
        text = Path(found.data.folder) / run.TEXT
        if not text.is_dir():
            raise ConfigError(
                f"{found.data.folder} is not prepared yet, so the vocabulary sizes are unknown: give --src-vocab-size and --tgt-vocab-size"
            )
        pipeline = Pipeline.load(text)
        src_vocab_size, tgt_vocab_size = len(pipeline.source_vocab), len(pipeline.target_vocab)
    parts, total = _count(run.build(found, src_vocab_size, tgt_vocab_size or src_vocab_size))
    if as_json:
        click.echo(json.dumps({"config": found.model_dump(mode="json"), "parameters": total, "parts": parts}, indent=1))
        return
    click.echo(configs.dump(found))
    for name, count in [*parts.items(), ("total", total)]:
        click.echo(f"{name:<24}{count:>14,}")
    if found.paper:
        paper = found.paper
        click.echo(f"\n{paper.table}, {paper.row}: {paper.parameters or 'no'} parameters printed, {total / 1e6:.2f}M here")
        click.echo(f"BLEU printed: {paper.bleu}")


def _count(model: Any) -> tuple[dict[str, int], int]:
    """Parameters by part (two levels of the module tree at most), each counted where it first stands, and in all."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = ".".join(name.split(".")[:2])
        part = part if part.rpartition(".")[2] in ("layers", "fuse", "connect", "tokens", "positions") else name.split(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts, sum(parts.values())
