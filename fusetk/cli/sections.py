"""A command whose help groups its options under headings."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

# The minus sign of a negative number, after `--option=` or alone.
_NEGATIVE = re.compile(r"^(--[a-z-]+=|)-(?=[0-9.])")


class Sections(click.Command):
    """A command whose help groups its options under headings."""

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str]], **settings: Any):
        """``sections`` maps each heading to the names of its parameters.

        Parameters without a heading, and ``--help``, are listed under the last one.
        """
        super().__init__(*arguments, **settings)
        self.sections = sections

    def by_section(self, context: click.Context) -> dict[str, list[click.Option]]:
        """Return the options under each heading."""
        options = {
            option.name: option
            for option in self.get_params(context)
            if isinstance(option, click.Option)
        }
        sections = {
            title: [options.pop(name) for name in names] for title, names in self.sections.items()
        }
        last = next(reversed(sections))
        sections[last] += options.values()
        return sections

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in self.by_section(context).items():
            records = [option.get_help_record(context) for option in options]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record])


class NegativeNumbers(Sections):
    """A command with headings that reads every argument like -1 as a value.

    So -1 is also the value of an option whose value may be omitted. No option of such a command may
    start with a digit.
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        # A space before a negative number prevents click from parsing it as an option.
        return super().parse_args(context, [_NEGATIVE.sub(r"\1 -", arg) for arg in args])
