"""Options of ``fusetk score`` that record scores in a run folder."""

from dataclasses import dataclass
from pathlib import Path

import click

from fusetk import runs
from fusetk.cli.common_options import print_warning
from fusetk.cli.parameters import Decorator, FilePath
from fusetk.errors import CheckpointError, join_names
from fusetk.reporting import score_log


@dataclass(frozen=True)
class RecordOptions:
    """The options that record scores in a run folder."""

    run: Path | None
    set_name: str | None
    checkpoint: str | None

    def check_single(self, reason: str) -> None:
        """Raise UsageError if one of the options is given, because ``reason`` excludes them."""
        if any(value is not None for value in (self.run, self.set_name, self.checkpoint)):
            raise click.UsageError(
                "--run, --set-name and --checkpoint record the scores of HYP on a complete "
                f"test set: record them without {reason}"
            )

    def destination(self) -> score_log.ScoreDestination | None:
        """Return the place of the record; None without --run.

        Print a warning if the run does not have the checkpoint that --checkpoint names.
        Raises UsageError, CheckpointError or DataError if the scores cannot be recorded there.
        """
        if self.run is None:
            if self.set_name is not None or self.checkpoint is not None:
                raise click.UsageError(
                    "--set-name and --checkpoint label a recorded score: add --run"
                )
            return None
        if not self.set_name:
            raise click.UsageError(
                "--run records the scores of a test set: give its name with --set-name"
            )
        for option, label in (("--set-name", self.set_name), ("--checkpoint", self.checkpoint)):
            if label and not label.isprintable():
                raise click.UsageError(
                    f"{option} {label!r} has a character that no table can show: remove it"
                )
        folder, name = runs.run_and_checkpoint(self.run)
        score_log.read(folder)
        if not (self.checkpoint or name):
            raise CheckpointError(
                f"{self.run} has no checkpoints/best or checkpoints/last: "
                "name the decoded checkpoint with --checkpoint"
            )
        label = self.checkpoint or name
        known = label == name or (folder / runs.CHECKPOINTS / label).exists()
        if not known:
            names = sorted(path.name for path in (folder / runs.CHECKPOINTS).glob("[!.]*"))
            print_warning(
                f"{folder} has no checkpoint {label}: the number of its updates is not recorded; "
                f"the run has {join_names(names) if names else 'no checkpoint'}"
            )
        return score_log.ScoreDestination(folder, self.set_name, label, known)


record_options: tuple[Decorator, ...] = (
    click.option(
        "--run",
        metavar="RUN",
        type=FilePath(path_type=Path),
        help="Record the scores in scores.json of this run folder, or of the run folder of this "
        "checkpoint. `fusetk report` reads them.",
    ),
    click.option("--set-name", metavar="NAME", help="With --run: the name of the test set."),
    click.option(
        "--checkpoint",
        metavar="LABEL",
        help="With --run: the decoded checkpoint, such as average-5. "
        "Default: RUN's name if RUN is a checkpoint, else best or last. If the run does not have "
        "this checkpoint, a warning is printed and the number of updates is not recorded.",
    ),
)
