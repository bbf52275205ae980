"""Options of ``fusetk score`` for tables of several systems, and for significance tests."""

import os
from dataclasses import dataclass
from pathlib import Path

import click

from fusetk.cli.parameters import Decorator, Parsed
from fusetk.data.text import display_name
from fusetk.evaluation.significance import SAMPLES, SEED, Sampling

_SAMPLE_DEFAULTS = ", ".join(f"{number} ({kind})" for kind, number in SAMPLES.items())


@dataclass(frozen=True)
class SystemOptions:
    """The systems that are compared with HYP, and the significance test."""

    systems: tuple[tuple[str, str], ...]
    name: str | None
    significance: str | None
    samples: int | None
    seed: int | None

    def files(self, hypothesis: str) -> dict[str, str]:
        """Map the name of each system to its file, HYP first; raise UsageError if names repeat."""
        stem = display_name("-")
        if hypothesis != "-":
            stem = Path(hypothesis.removesuffix(".gz")).stem
        pairs = [(self.name or stem, hypothesis), *self.systems]
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise click.UsageError(
                    f"two systems are called {name!r}: "
                    "give other names, with --name for HYP and with --system NAME=FILE"
                )
        return dict(pairs)

    def sampling(self, by_length: bool) -> Sampling | None:
        """Return the significance test; None without --significance.

        Raises UsageError if the test lacks systems, or if --samples or --seed lack the test.
        """
        if self.significance is None:
            if self.samples is not None or self.seed is not None:
                raise click.UsageError(
                    "--samples and --seed are options of a test: add --significance"
                )
            return None
        if by_length or not self.systems:
            raise click.UsageError(
                "--significance tests systems against HYP on the complete text: "
                "give --system NAME=FILE, and no --by-length"
            )
        samples = self.samples or SAMPLES[self.significance]
        return Sampling(self.significance, samples, self.seed or SEED)

    def check_name(self) -> None:
        """Raise UsageError if --name is given without --system."""
        if self.name is not None and not self.systems:
            raise click.UsageError(
                "--name has no effect without --system or --by-length: "
                "add one of them, or omit --name"
            )


def parse_system(text: str) -> tuple[str, str]:
    """Parse the name of a system and the file with its translations. Raises ValueError."""
    name, _, file = text.partition("=")
    if not (name and file):
        raise ValueError(f"{text!r} is not NAME=FILE, a name and a file of translations")
    return name, os.path.expanduser(file)


system_options: tuple[Decorator, ...] = (
    click.option(
        "--system",
        "systems",
        type=Parsed("NAME=FILE", parse_system),
        multiple=True,
        help="Name of another system, and file with its translations, shown in a table with HYP; "
        "repeatable.",
    ),
    click.option(
        "--name",
        metavar="NAME",
        help="Name of HYP in a table. Default: the name of the file without its suffix.",
    ),
    click.option(
        "--significance",
        type=click.Choice([*SAMPLES]),
        help="Test whether each --system differs from HYP by more than chance, with paired "
        "bootstrap or approximate randomisation.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(1),
        metavar="N",
        help="With --significance: the number of samples. "
        f"Default: {_SAMPLE_DEFAULTS}, as in sacreBLEU.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(1),
        metavar="N",
        help=f"With --significance: the random seed. Default: {SEED}, as in sacreBLEU.",
    ),
)
