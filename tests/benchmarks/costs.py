"""Measure the costs of all systems of a folder of results in one run.

    python tests/benchmarks/costs.py RECIPES --runs DIR --results DIR

The script measures a trained run of each row of the table of the results. The systems take turns of
a few updates, and then turns of the beam search for some sentences of the validation set, with the
trained weights. It also counts the memory that a batch keeps for its gradients. It writes the
values to `costs/costs.json` in the folder of results, and `fusetk report` prints them relative to
the baseline. On CPU the times are processor times with one thread, so other processes have little
influence. Systems without a result or without a run folder are left out: measure again when they
are trained.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from fusetk import system
from fusetk.data.corpus import Corpus
from fusetk.decoding.translate import Translator
from fusetk.errors import CheckpointError, DataError, FusetkError
from fusetk.machine import device_of, processor, revision
from fusetk.reporting.deviations import config_overrides
from fusetk.reporting.measured_costs import MeasuredCosts, SystemCost, write_costs
from fusetk.reporting.result_tables import read_tables
from fusetk.reporting.saved_run import SavedRun
from fusetk.reporting.tables import PaperRow, assign_runs, read_rows
from fusetk.runs import CONFIG, find_checkpoint
from fusetk.training.log import device_name

from memory import saved  # isort: skip
from training import turns as training_turns  # isort: skip
from turns import take_turns  # isort: skip

PRECISION = "fp32"


def runs_of_results(recipes: Path, runs: Path, results: Path) -> dict[str, tuple[str, Path]]:
    """Return the name of a result and its run folder for each system of the results.

    It is the first seed that has a run folder with a checkpoint. The systems that have none are
    printed.
    """
    rows = {row.path.stem: row for row in read_rows([recipes]) if row.path is not None}
    assign_runs(list(rows.values()), [runs])
    table_runs = {
        row.first.system: row.runs for table in read_tables(results, {}) for row in table.rows
    }
    folders: dict[str, tuple[str, Path]] = {}
    for name in sorted(table_runs.keys() | rows.keys()):
        if name not in table_runs:
            print(f"{name} is left out: it has no result yet")
            continue
        pairs = [(run.stem, run_folder(run, rows.get(name))) for run in table_runs[name]]
        existing = [(stem, folder) for stem, folder in pairs if folder is not None]
        if existing:
            folders[name] = existing[0]
        else:
            print(f"{name} is left out: {runs} has no run of its results with a checkpoint")
    if not folders:
        raise DataError(f"{runs} has no run of the results in {results}: name another folder")
    return folders


def run_folder(result: SavedRun, row: PaperRow | None) -> Path | None:
    """Return the folder of the run that a result describes; None without a checkpoint."""
    for run in row.runs if row else []:
        seed = int(run.setting("training", "seed") or 0)
        overrides = config_overrides(run.config, row.config) if row else {}
        if (seed, overrides) == (result.result.seed, result.result.overrides):
            try:
                find_checkpoint(run.folder)
            except CheckpointError:
                continue
            return run.folder
    return None


def decoding_turns(run: Path, sentences: int, device: torch.device) -> Iterator[float]:
    """Yield sentences a second of beam search with the trained weights; the first is warm-up."""
    loaded = system.load_model(run, device)
    corpus = Corpus.open(Path(loaded.recipe.data.folder), "valid")
    sources = [corpus.source[i].tolist() for i in range(min(sentences, len(corpus)))]
    translator = Translator([loaded.model], loaded.pipeline, loaded.recipe.decoding)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    while True:
        start = clock()
        with torch.inference_mode():
            translator.translate_ids(sources)
        yield len(sources) / (clock() - start)


def measure(folders: dict[str, tuple[str, Path]], options: argparse.Namespace) -> MeasuredCosts:
    """Return the costs of the runs in these folders."""
    device = device_of(options.device)
    configs = {name: str(folder / CONFIG) for name, (_, folder) in folders.items()}
    bytes_per_token = {}
    for name, config in configs.items():
        tokens, size = saved(config, PRECISION, [], None, device)
        bytes_per_token[name] = round(size / tokens, 1)
    arguments = argparse.Namespace(
        overrides=[],
        vocabulary=None,
        device=options.device,
        updates=options.updates,
        processor_time=device.type == "cpu",
    )
    training = take_turns(
        {name: training_turns(config, PRECISION, arguments) for name, config in configs.items()},
        options.turns,
    )
    decoding = take_turns(
        {
            name: decoding_turns(folder, options.sentences, device)
            for name, (_, folder) in folders.items()
        },
        options.turns,
    )
    return MeasuredCosts(
        processor=processor(),
        device=device_name(device, 1),
        settings=(
            f"{options.turns} turns of {options.updates} updates and of the beam search for "
            f"{options.sentences} sentences, float32"
            + (", processor time" if device.type == "cpu" else "")
        ),
        revision=revision(),
        systems={
            name: SystemCost(
                run=stem,
                training=[float(f"{value:.4g}") for value in training[name]],
                decoding=[float(f"{value:.4g}") for value in decoding[name]],
                bytes_per_token=bytes_per_token[name],
            )
            for name, (stem, _) in folders.items()
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", type=Path, help="the folder of the systems' recipes")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of runs")
    parser.add_argument("--results", type=Path, required=True, help="the folder of results")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--updates", type=int, default=5, help="updates of a turn")
    parser.add_argument("--sentences", type=int, default=100, help="sentences of a turn")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        costs = measure(runs_of_results(options.recipes, options.runs, options.results), options)
        path = write_costs(options.results, costs)
    except FusetkError as error:
        sys.exit(f"costs.py: {error}")
    print(f"{path}: {', '.join(costs.systems)}")


if __name__ == "__main__":
    main()
