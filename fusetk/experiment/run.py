"""The steps of an experiment: prep, train, average, decode, score, report."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from fusetk import sections
from fusetk.data import manifest
from fusetk.data.batch_config import UNITS
from fusetk.data.steps.lowercase import lowercases_target
from fusetk.errors import ConfigError, FusetkError, quantity
from fusetk.evaluation.metrics import scores_tokens
from fusetk.experiment import STEPS, counts, launch
from fusetk.experiment.places import Places
from fusetk.experiment.products import Products
from fusetk.experiment.references import detokenize, write_references
from fusetk.experiment.scoring import decoded_checkpoints, metrics_of
from fusetk.files import checksum, lock, open_lock_file, write_if_changed
from fusetk.machine import without_auto
from fusetk.recipe import Recipe
from fusetk.resume import check_config
from fusetk.runs import CHECKPOINTS, STATE, num_averaged, read_state, references_folder
from fusetk.training import schedule
from fusetk.training.average import last_checkpoints
from fusetk.training.config import StageConfig
from fusetk.training.progress import read_progress, stage_ended


class Options(NamedTuple):
    """Choices of the user that do not change the config."""

    metrics: Sequence[str] = ()  # besides those of the config
    average: int | None = None  # number of checkpoints of another average to score
    jobs: int = 1  # processes for the preparation
    device: str = "auto"
    devices: int = 1
    threads: int | None = None
    until: str = STEPS[-1]
    row: Path | None = None  # config of the row of a paper; None: there is no table to report
    quiet: bool = False  # the commands of the steps get -q
    any_data: bool = False  # accept text without the published counts


class Experiment:
    """The steps from raw text to the report of one config."""

    def __init__(
        self,
        recipe: Recipe,
        places: Places,
        options: Options,
        say: Callable[[str], None],
    ):
        """``recipe`` has the paths of the experiment. ``say`` prints a line for the user."""
        self.recipe = recipe
        self.places = places
        self.options = options
        self.say = say
        metrics_of(recipe, options.metrics)  # an unknown metric is an error before the first step
        self._locks: list[int] = []  # open files that the commands hold, too

    def check_run(self) -> None:
        """Raise ConfigError if the run exists and cannot be continued with this config.

        Also raise it if prep would replace the prepared text of the run, and CheckpointError if the
        last checkpoint is damaged.
        """
        check_config(self.recipe, self.places.run, "--out")

    def run(self) -> None:
        """Take all steps, up to ``options.until``.

        Prepared text, training, averages and translations are made again only after changes.
        Scores and the report are always made again.

        Raises ConfigError if another process works on the experiment, and FusetkError if a step
        fails.
        """
        self.places.out.mkdir(parents=True, exist_ok=True)
        methods = (self.prepare, self.train, self.average, self.decode, self.score, self.report)
        steps = list(zip(STEPS, methods, strict=True))
        last = STEPS.index(self.options.until)
        with self._locked():
            for number, (name, step) in enumerate(steps[: last + 1], 1):
                start = time.monotonic()
                self.say(f"\n== {number} of {last + 1}: {name}")
                step()
                self.say(f"{name}: {time.monotonic() - start:.1f} s")

    def plan(self) -> list[str]:
        """Return a title, and a line for each step up to ``options.until``: done, or to do.

        No file is changed.
        """
        text = Path(self.recipe.data.folder).name
        prepared = (Path(self.recipe.data.folder) / manifest.NAME).exists()
        trained, training = self._training_state()
        row = self.options.row
        states = {
            "prep": "done; repeated if the text or a setting changed" if prepared else "",
            "train": training,
            "average": self._average_state() if trained else "",
            "decode": self._decode_state() if trained and prepared else "",
            "score": "",
            "report": "" if row else "nothing to do: the config is not a row of a paper's table",
        }
        last = STEPS.index(self.options.until)
        return [
            f"plan: {self.places.run} (text in {text}){self._device_of_plan() if last else ''}",
            *(f"  {name:<8} {states[name] or 'to do'}" for name in STEPS[: last + 1]),
        ]

    def _device_of_plan(self) -> str:
        devices = self.options.devices
        return f" on {f'{devices} x ' if devices > 1 else ''}{without_auto(self.options.device)}"

    def _training_state(self) -> tuple[bool, str]:
        """Return whether training has ended, and a phrase about it; empty before its start."""
        last = self.places.run / CHECKPOINTS / "last"
        if not last.is_dir():
            return False, ""
        try:
            progress = read_progress(last.resolve())
            self.check_run()
        except FusetkError as error:
            return False, f"to do; {error}"
        stages = self.recipe.training.stages
        updates = quantity(progress.update, "update")
        if progress.stage + 1 == len(stages) and progress.validated:
            stage = stages[-1]
            width = self.recipe.model.width
            if stage_ended(stage.end, progress, schedule.build(stage.schedule, width)):
                return True, f"done, {updates}"
        return False, f"continues after {updates}"

    def _average_state(self) -> str:
        products = Products(self.places.run)
        averages = list(self._averages())
        if not averages:
            return "nothing to do: no average translates"
        done = sum(products.up_to_date(model / STATE, states) for model, _, states in averages)
        return _share(done, len(averages), "average")

    def _decode_state(self) -> str:
        products = Products(self.places.run)
        total = len(self.recipe.data.test) * len(self._models())
        done = 0
        with suppress(FusetkError, OSError):  # an average or a text does not exist yet
            for _, _, translation, inputs in self._translations():
                done += products.up_to_date(translation, inputs)
        return _share(done, total, "translation")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Within this context no other process works on the experiment."""
        with open_lock_file(self.places.lock(self.places.run)) as file:
            if not lock(file):
                raise ConfigError(
                    f"another fusetk run works on {self.places.run}: "
                    "wait until it ends, or choose another --out"
                )
            with self._commands_hold(file):
                yield

    @contextmanager
    def _commands_hold(self, file: IO[Any]) -> Iterator[None]:
        """Within this context a command keeps the lock even if this process is killed."""
        self._locks.append(file.fileno())
        try:
            yield
        finally:
            self._locks.pop()

    def _call(self, *arguments: object, devices: int = 1) -> None:
        name, *others = arguments
        quiet = ["-q"] if self.options.quiet else []
        words = launch.command(name, *quiet, *others, devices=devices)
        self.say(f"$ {launch.shown(words)}")
        sys.stdout.flush()
        launch.call(words, locks=self._locks)

    def machine_options(self) -> list[str]:
        """Return the options for device and threads."""
        threads = [f"--threads={self.options.threads}"] if self.options.threads else []
        return [f"--device={self.options.device}", *threads]

    # The steps

    def prepare(self) -> None:
        """Prepare the text. Wait while another experiment of the group prepares text."""
        with open_lock_file(self.places.lock(self.places.usual_prepared)) as file:
            if not lock(file):
                out = self.places.out
                self.say(f"waiting for another fusetk run, which prepares text in {out}")
                lock(file, wait=True)
            self._choose_prepared_folder()
            with self._commands_hold(file):
                self._call("prep", self.places.config, f"--jobs={self.options.jobs}")
            write_references(self.recipe.data, self._references())
        self._check_counts()

    def _choose_prepared_folder(self) -> None:
        """Choose the prepared folder again, and write the config.

        Since the first choice, another experiment may have prepared the folder with other settings.
        Raises ConfigError if the run exists and was trained with another config, or if prep would
        replace its prepared text.
        """
        folder = str(self.places.prepared(self.recipe.data))
        data = self.recipe.data.model_copy(update={"folder": folder})
        self.recipe = self.recipe.model_copy(update={"data": data})
        self.check_run()
        write_if_changed(self.places.config, sections.dump(self.recipe).encode())

    def _check_counts(self) -> None:
        """Compare the prepared text with its published counts.

        Raises DataError if a number of pairs differs, unless ``options.any_data`` is set.
        """
        published = self.recipe.paper.text if self.recipe.paper else {}
        if not published:
            return
        compared = counts.compare(published, Path(self.recipe.data.folder))
        self.say(counts.table(compared))
        if warning := counts.check(compared, self.options.any_data):
            self.say(warning)

    def train(self) -> None:
        for line in describe_updates(self.recipe.training.stages, self.options.devices):
            self.say(line)
        self._call(
            *("train", self.places.config, "-r", self.places.run, *self.machine_options()),
            devices=self.options.devices,
        )

    def average(self) -> None:
        """Make the averages that translate the test sets.

        An average of N checkpoints has all last checkpoints if the run has fewer than N.
        """
        products = Products(self.places.run)
        for model, number, states in self._averages():
            state = model / STATE
            if products.up_to_date(state, states):
                self.say(f"{model}: nothing changed, nothing to do")
                continue
            self._call("average", self.places.run, f"--last={number}", f"--name={model.name}")
            products.add(state, states)

    def decode(self) -> None:
        """Translate every test set with the chosen checkpoints."""
        products = Products(self.places.run)
        for checkpoint, source, translation, inputs in self._translations():
            if products.up_to_date(translation, inputs):
                self.say(f"{translation}: nothing changed, nothing to do")
                continue
            part = translation.with_name(f"{translation.name}.part")
            self._call(
                *("decode", "-m", checkpoint, "-i", source, "-o", part, "--tokenized"),
                *self.machine_options(),
                devices=self.options.devices,
            )
            part.replace(translation)
            products.add(translation, inputs)

    def score(self) -> None:
        """Score every translation, and record the scores in the run folder."""
        metrics = metrics_of(self.recipe, self.options.metrics)
        tokenized = [metric for metric in metrics if scores_tokens(metric)]
        others = [metric for metric in metrics if metric not in tokenized]
        for name in self.recipe.data.test:
            for checkpoint in self._models():
                words = self._translation(name, checkpoint)
                if tokenized:
                    self._score(name, checkpoint, words, tokenized)
                if others:
                    raw = words.with_suffix(".raw")
                    detokenize(Path(self.recipe.data.folder), words, raw)
                    self._score(name, checkpoint, raw, others)

    def _score(self, name: str, checkpoint: Path, text: Path, metrics: Sequence[str]) -> None:
        target = self.recipe.data.target
        references = [self._text(name, target, text.suffix)]
        references += sorted((self._references() / name).glob(f"*{text.suffix}"))
        arguments: list[object] = ["score", text]
        for reference in references:
            arguments += ["-r", reference]
        arguments += [f"--metric={metric}" for metric in metrics]
        if text.suffix == ".raw" and lowercases_target(self.recipe.data.steps):
            arguments.append("--lowercase")
        label = checkpoint.name
        self._call(*arguments, "--run", self.places.run, "--set-name", name, "--checkpoint", label)

    def report(self) -> None:
        """Print the row of the paper's table with the scores of its runs with all seeds."""
        row = self.options.row
        if row is None:
            self.say(f"{self.places.config.stem} is not a row of a paper: there is no table")
            return
        runs = [f"--runs={run}" for run in self.places.runs_of_all_seeds()]
        self._call("report", row, *runs)
        words = launch.command("report", row.parent, "--runs", self.places.out)
        self.say(f"the complete table: {launch.shown(words)}")

    # Files of the steps

    def _models(self) -> list[Path]:
        """Return the checkpoints that translate."""
        existing = len(last_checkpoints(self.places.run))
        names = decoded_checkpoints(self.recipe, self.options.average, existing)
        return [self.places.run / CHECKPOINTS / name for name in names]

    def _averages(self) -> Iterator[tuple[Path, int, list[str]]]:
        """Yield each average that translates, its number of checkpoints, and their checksums."""
        for model in self._models():
            if number := num_averaged(model.name):
                folders = last_checkpoints(self.places.run)[-number:]
                yield model, number, [checksum(folder / STATE) for folder in folders]

    def _translations(self) -> Iterator[tuple[Path, Path, Path, list[Any]]]:
        """Yield each checkpoint and test text, their translation, and what determines it."""
        for name in self.recipe.data.test:
            source = self._text(name, self.recipe.data.source)
            for checkpoint in self._models():
                inputs = [
                    read_state(checkpoint.resolve())["sha256"],
                    checksum(source),
                    self.recipe.decoding.model_dump(mode="json"),
                ]
                yield checkpoint, source, self._translation(name, checkpoint), inputs

    def _references(self) -> Path:
        return references_folder(self.places.out, Path(self.recipe.data.folder))

    def _text(self, name: str, language: str, ending: str = ".txt") -> Path:
        return Path(self.recipe.data.folder) / f"test.{name}.{language}{ending}"

    def _translation(self, name: str, checkpoint: Path) -> Path:
        return self.places.run / f"{name}.{checkpoint.name}.txt"


def _share(done: int, total: int, kind: str) -> str:
    """Return how many files of a step are up to date; empty if there is none."""
    if not done:
        return ""
    return f"{'done' if done == total else 'to do'}, {done} of {quantity(total, kind)}"


def describe_updates(stages: Sequence[StageConfig], devices: int) -> list[str]:
    """Return a sentence for each stage about the batches of an update, and who computes them."""
    lines = []
    for number, stage in enumerate(stages, 1):
        batch = stage.batch
        text = f"stage {number}: an update is {batch.accumulate} x {batch.size:,}"
        if batch.accumulate > 1:
            text = f"{text} = {batch.accumulate * batch.size:,}"
        text = f"{text} {UNITS[batch.unit]}"
        if batch.token_limit:
            text = f"{text}, in batches of at most {batch.token_limit:,} tokens"
        if devices > 1 and batch.accumulate % devices == 0:
            each = batch.accumulate // devices
            text = f"{text}; each of {devices} devices computes {each} of its batches"
        elif devices > 1:
            text = f"{text}; each of {devices} devices computes 1/{devices} of every batch"
        lines.append(text)
    return lines
