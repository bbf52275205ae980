"""The options for vocabulary sizes of ``fusetk describe`` and ``fusetk estimate``."""

import click

from fusetk.cli.parameters import Decorator

VOCABULARY_OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--src-vocab-size",
        type=click.IntRange(5),
        help="Number of entries of the source vocabulary, special tokens included. Default: the "
        "size of the prepared vocabulary, or else that of the paper.",
    ),
    click.option(
        "--tgt-vocab-size",
        type=click.IntRange(5),
        help="Number of entries of the target vocabulary. If only one size is given, it is used "
        "for both sides.",
    ),
)


def given_sizes(source: int | None, target: int | None) -> tuple[int, int] | None:
    """Return the given sizes of both vocabularies; one size is used for both. None without one."""
    size = source or target
    return (source or size, target or size) if size else None
