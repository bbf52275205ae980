"""The steps of the demo. Each step that a user would take is a command of fusetk."""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fusetk import recipe
from fusetk.data.text import cannot_write
from fusetk.demo.grammar import write_corpus
from fusetk.demo.results import FUSING, PLAIN, DemoFiles, attention_to_source, sentence_to_plot
from fusetk.errors import DataError
from fusetk.experiment.products import Products
from fusetk.files import checksum, replace_file
from fusetk.resume import check_before_prep
from fusetk.runs import CONFIG, METRICS, STATE

CONFIGS = Path(__file__).parent  # the folder of the configs


class Demo:
    """The steps from a generated corpus to the pictures of one model.

    A step that was taken is not repeated. A file that a step makes is made again if it or its
    inputs changed.
    """

    def __init__(
        self,
        files: DemoFiles,
        call: Callable[[Sequence[str]], None],
        say: Callable[[str], None],
    ):
        """``call`` runs a command of fusetk, and ``say`` prints a line for the user."""
        self.files = files
        self.overrides = [word for setting in files.settings for word in ("--set", setting)]
        self.call = call
        self.say = say
        self.begin = time.monotonic()

    @property
    def seconds(self) -> int:
        """Seconds since the demo was started."""
        return round(time.monotonic() - self.begin)

    def run(self) -> None:
        """Take all steps. Raises DataError if the folder holds other files, and FusetkError."""
        self.make_text()
        config = recipe.load(self.files.config, self.files.settings)
        check_before_prep(config, self.files.run, "--out")
        self._command("prepare the text: words, subwords, ids", "prep", *self._config())
        self._command("train", "train", *self._config(), "--run", self.files.run)
        products = Products(self.files.folder)
        self._translate(products)
        self._draw(products)

    def make_text(self) -> None:
        """Write the configs and the corpus, unless they exist.

        Raises DataError if the folder has files that are not the demo's.
        """
        folder = self.files.folder
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder} is a file; choose another folder with --out")
        configs = [folder / f"{name}.yaml" for name in (FUSING, PLAIN)]
        if folder.is_dir() and any(folder.iterdir()) and not configs[0].is_file():
            raise DataError(
                f"{folder} has files that are not the demo's; choose another folder with --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for config in configs:
            if not config.is_file():
                replace_file(config, (CONFIGS / config.name).read_bytes())
        if not self.files.raw.is_dir():
            self.say("== write German and English sentences by a grammar")
            try:
                write_corpus(self.files.raw)
            except OSError as error:
                raise cannot_write(error.filename or self.files.raw, error) from None

    def _translate(self, products: Products) -> None:
        files = self.files
        search = recipe.load(files.run / CONFIG).decoding.model_dump(mode="json")
        self._make(
            products,
            files.translation,
            [checksum(files.checkpoint / STATE), search],
            "translate sentences that training did not see",
            *("decode", "-m", files.run, "-i", files.raw / "test.de", "-o", files.translation),
        )
        record = ("--run", files.run, "--set-name", "demo", "--checkpoint", files.checkpoint.name)
        self._make(
            products,
            files.scores,
            checksum(files.translation),
            "score",
            *("score", files.translation, "-r", files.raw / "test.en"),
            *("--metric", "sacrebleu", "--metric", "chrf", *record),
        )

    def _draw(self, products: Products) -> None:
        files = self.files
        inputs = [checksum(files.checkpoint / STATE), checksum(files.translation)]
        source, target = sentence_to_plot(files)
        pair = ("-m", files.run, "-s", source, "-t", target)
        if files.layers:
            self._make(
                products,
                files.layers,
                inputs,
                "draw: which layers does the fusion read for each word?",
                *("plot-attention", *pair, "--what", "fuse", "-o", files.layers),
            )
        self._make(
            products,
            files.attention,
            inputs,
            "draw: which source words does the decoder attend to?",
            *("plot-attention", *pair, "--what", attention_to_source(files)),
            *("-o", files.attention),
        )
        curves = files.curves
        self._make(
            products,
            curves,
            checksum(files.run / METRICS),
            "draw: loss and accuracy during training",
            *("plot-curves", files.run, "-o", curves),
        )

    def _config(self) -> list[object]:
        return [self.files.config, *self.overrides]

    def _make(
        self, products: Products, output: Path, inputs: object, title: str, *words: object
    ) -> None:
        """Make a file by a command, unless it is unchanged since it was made from the inputs."""
        if products.up_to_date(output, inputs):
            return
        self._command(title, *words)
        products.add(output, inputs)

    def _command(self, title: str, *words: object) -> None:
        arguments = [str(word) for word in words]
        self.say(f"\n== {title}\n$ {shlex.join(['fusetk', *arguments])}")
        self.call(arguments)
