"""The files of the demo, and the facts that its summary and its page show."""

import random
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fusetk.data import manifest
from fusetk.data.text import read_lines
from fusetk.errors import DataError
from fusetk.reporting import score_log
from fusetk.runs import CHECKPOINTS, CONFIG, read_metrics

FUSING = "dec_sa"  # the configs of the demo
PLAIN = "transformer"
WORDS_TO_PLOT = 8  # words of the sentence in the pictures


class DemoFiles(NamedTuple):
    """The files of the demo of one model; all are below one folder."""

    folder: Path
    name: str  # of the config
    settings: tuple[str, ...] = ()  # KEY=VALUE changes of the config

    @property
    def config(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def raw(self) -> Path:
        """Folder of the generated text."""
        return self.folder / "raw"

    @property
    def run(self) -> Path:
        """Run folder."""
        return self.folder / "runs" / self.name

    @property
    def checkpoint(self) -> Path:
        """The best checkpoint, which translates."""
        return self.run / CHECKPOINTS / "best"

    @property
    def scores(self) -> Path:
        return self.run / score_log.NAME

    @property
    def translation(self) -> Path:
        return self.folder / f"{self.name}.en"

    @property
    def layers(self) -> Path | None:
        """The picture of the layer weights; None for the model without fusion."""
        return self.folder / f"{self.name}.layers.png" if self.name == FUSING else None

    @property
    def attention(self) -> Path:
        """The picture of the attention to the source."""
        return self.folder / f"{self.name}.attention.png"

    @property
    def curves(self) -> Path:
        """The picture of the training curves."""
        return self.folder / f"{self.name}.curves.png"

    @property
    def page(self) -> Path:
        return self.folder / f"{self.name}.html"

    @property
    def other(self) -> "DemoFiles":
        """The files of the other model."""
        return self._replace(name=PLAIN if self.name == FUSING else FUSING)


class Translated(NamedTuple):
    """A test sentence, its translation and its reference."""

    source: str
    translation: str
    reference: str

    @property
    def is_right(self) -> bool:
        """Whether the translation equals the reference."""
        return self.translation == self.reference


def translated(files: DemoFiles) -> list[Translated]:
    """Return the test sentences with their translations."""
    paths = (files.raw / "test.de", files.translation, files.raw / "test.en")
    return [Translated(*lines) for lines in zip(*map(read_lines, paths), strict=True)]


def sentence_to_plot(files: DemoFiles) -> tuple[str, str]:
    """Return a test sentence of about ``WORDS_TO_PLOT`` words, and its translation.

    If possible, it has a subordinate clause and a translation that equals the reference.
    """
    sentences = [sentence for sentence in translated(files) if sentence.translation]
    if not sentences:
        raise DataError(
            f"all translations in {files.translation} are empty: train the model longer"
        )
    right = [sentence for sentence in sentences if sentence.is_right]
    clauses = [sentence for sentence in right if ", " in sentence.source]
    chosen = min(
        clauses or right or sentences,
        key=lambda sentence: abs(len(sentence.source.split()) - WORDS_TO_PLOT),
    )
    return chosen.source, chosen.translation


def examples(files: DemoFiles, count: int) -> list[Translated]:
    """Return random test sentences, the same for every model."""
    return random.Random(1).sample(translated(files), count)


class DemoModel(NamedTuple):
    """A trained model of the demo and its scores."""

    title: str
    parameters: int
    scores: dict[str, float]  # by metric


def trained_models(files: DemoFiles) -> list[DemoModel]:
    """Return the model of the demo, and the other one if the folder has its scores."""
    from fusetk import system

    models = []
    for each in (files, files.other):
        records = score_log.read(each.run) if each.scores.is_file() else []
        scores = {record.metric: record.value for record in records if record.set_name == "demo"}
        if scores:
            model = system.load_model(each.run, "cpu").model
            count = sum(parameter.numel() for parameter in model.parameters())
            models.append(DemoModel(title(each), count, scores))
    return models


def facts(files: DemoFiles) -> list[tuple[str, str]]:
    """Return names and values that describe the model, its text and its training."""
    splits = manifest.read(files.folder / "data")["splits"]
    records = list(read_metrics(files.run))
    pairs = [f"{splits[split]['pairs_out']:,}" for split in ("train", "valid", "test.demo")]
    return [
        ("model", describe_model(files)),
        (
            "text",
            f"German to English; {pairs[0]} pairs for training, {pairs[1]} for validation, "
            f"{pairs[2]} for the test",
        ),
        ("training", describe_training(records)),
    ]


def describe_training(records: list[dict[str, Any]]) -> str:
    """Return the updates, the epochs and the speed of a training."""
    speeds = sorted(record["tokens_per_second"] for record in records if record["kind"] == "train")
    speed = f", {speeds[len(speeds) // 2]:,.0f} target tokens/s" if speeds else ""
    last = records[-1]
    return f"{last['update']:,} updates, {last['epoch']:.1f} epochs{speed}"


def describe_model(files: DemoFiles) -> str:
    """Return the backbone, the depths, the connections and the width of the trained model."""
    from fusetk.models.description import summary

    config = _model_config(files)
    return f"{summary(config)}; width {config.width}"


def attention_to_source(files: DemoFiles) -> str:
    """Return the name of the attention to the source of the trained model, for plot-attention."""
    return "mixed" if getattr(_model_config(files), "mixed_attention", False) else "cross"


def decoder_fusion(files: DemoFiles) -> str | None:
    """Return the kind of the fusion in the decoder of the trained model; None without a fusion."""
    decoder = getattr(_model_config(files), "decoder", None)
    kind = getattr(getattr(decoder, "fuse", None), "kind", "last")
    return None if kind == "last" else str(kind)


def title(files: DemoFiles) -> str:
    """Return the title of the trained model."""
    kind = decoder_fusion(files)
    if kind is None:
        return f"{_model_config(files).kind.capitalize()} without fusion"
    return f"{'Dec-SA' if kind == 'attention' else kind}: the decoder fuses its layers"


def _model_config(files: DemoFiles) -> Any:
    from fusetk import recipe

    return recipe.load(files.run / CONFIG).model


def next_commands(files: DemoFiles) -> list[tuple[str, str]]:
    """Return commands for the user to try, each after a comment."""
    folder, run = shlex.quote(str(files.folder)), shlex.quote(str(files.run))
    changes = _options(files.settings)
    plain_changes = _options(s for s in files.settings if not s.startswith("model.decoder.fuse"))
    source, _ = sentence_to_plot(files)
    sentence = shlex.quote(source)
    commands = _activation()
    commands.append(("translate your own sentences", f"echo {sentence} | fusetk decode -m {run}"))
    if files.other.scores.is_file():
        runs = f"{folder}/runs/{PLAIN} {folder}/runs/{FUSING}"
        texts = f"-i {folder}/raw/test.de -r {folder}/raw/test.en"
        commands.append(
            ("the largest differences between the models", f"fusetk compare {runs} {texts}")
        )
    elif files.name == FUSING:
        commands.append(
            ("the same model without fusion", f"fusetk demo --plain --out {folder}{plain_changes}"),
        )
    else:
        commands.append(("the same model with a fusion", f"fusetk demo --out {folder}{changes}"))
    commands += [
        (
            "another fusion",
            f"fusetk train {folder}/{FUSING}.yaml --run {folder}/runs/linear{changes} "
            "--set 'model.decoder.fuse={kind: linear, norm_layers: true}'",
        ),
        (
            "every attention head, as an interactive page",
            f"fusetk plot-attention -m {run} -s {sentence} --head all -o heads.html",
        ),
    ]
    return commands


def _options(settings: Iterable[str]) -> str:
    return "".join(f" --set {shlex.quote(setting)}" for setting in settings)


def _activation() -> list[tuple[str, str]]:
    """Return the command that activates the environment of fusetk, if the shell needs it."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("fusetk") or not script.is_file():
        return []
    if script.is_relative_to(Path.cwd()):
        script = script.relative_to(Path.cwd())
    return [("activate the environment of fusetk", f". {shlex.quote(str(script))}")]
