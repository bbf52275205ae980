"""Warnings about languages and texts that the prep steps do not support."""

from collections.abc import Iterator, Mapping, Sequence

from fusetk.data.languages import without_spaces
from fusetk.data.steps.base import PrepStep, line_steps
from fusetk.data.text import FilePair, read_lines


def warnings(
    languages: Mapping[str, str], steps: Sequence[PrepStep], texts: Sequence[FilePair]
) -> Iterator[str]:
    """Yield a warning for each language and each text that the steps do not support.

    ``languages`` is keyed by side.
    """
    for i, (side, language) in enumerate(languages.items()):
        side_steps = {step.step: step for step in line_steps(steps, side)}
        for name, step in side_steps.items():
            if warning := step.language_warning(language):
                yield (
                    f"data.{side}: {warning}; check the language code, or prepare this side with a "
                    f"tool for the language and exclude it from the step {name}"
                )
        if any(step.splits_words or step.adds_spaces for step in side_steps.values()):
            continue
        needs_spaces = [name for name, step in side_steps.items() if step.needs_spaces]
        exclude = f" and exclude it from the step {needs_spaces[0]}" if needs_spaces else ""
        for path in dict.fromkeys(pair[i] for pair in texts):
            if warning := without_spaces(read_lines(path)):
                yield (
                    f"{path}: {warning}; segment this side before prep with a tool for the "
                    f"language, or in prep with a step of your own{exclude}"
                )
