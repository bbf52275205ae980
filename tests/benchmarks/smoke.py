"""Train each config for some updates, and measure its training speed and its memory.

    python tests/benchmarks/smoke.py CONFIG [CONFIG ...] [--only PART ...] [--set KEY=VALUE ...]

The data of each config must be prepared. The parts are:

- speed: the training speed, divided by that of the first config. The configs take turns of one
  update each (see training.py).
- memory: the memory that a training batch keeps for its gradients, in KB for each target token (see
  memory.py).
- loss: the validation loss for each token after ``--updates`` updates. The configs train one after
  the other. A run that was interrupted resumes from ``--runs``.

The results are added to the file ``--output`` as soon as they are known. A loss in this file is not
measured again; the last measurement of a speed replaces the earlier one. The script prints a table
of all results in the file, in the order of the configs.

One seed and a few hundred updates show that a system trains, not how good it is.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from memory import saved  # isort: skip
from training import add_cpu_options, turns  # isort: skip
from turns import median_ratio, options, take_turns  # isort: skip

from fusetk import train
from fusetk.files import replace_file
from fusetk.machine import device_of
from fusetk.recipe import load
from fusetk.runs import METRICS

PARTS = ("speed", "memory", "loss")
SAVE_EVERY = 100  # updates between checkpoints, from which a run resumes
ROOT = Path(__file__).parents[2]
Results = dict[str, dict[str, Any]]


def read(path: Path) -> Results:
    """Return the results of each config by its name."""
    if not path.exists():
        return {}
    results: Results = json.loads(path.read_text(encoding="utf-8"))
    return results


def add(path: Path, name: str, **values: Any) -> None:
    """Add values of a config to the file of results."""
    results = read(path)
    results[name] = {**results.get(name, {}), **values}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(results, indent=1) + "\n")


def measure_speeds(arguments: argparse.Namespace) -> None:
    systems = {
        config: turns(config, arguments.precision[0], arguments) for config in arguments.configs
    }
    speeds = take_turns(systems, arguments.turns)
    first = speeds[arguments.configs[0]]
    for config, values in speeds.items():
        ratio = round(median_ratio(values, first), 3)
        of = Path(arguments.configs[0]).stem
        add(arguments.output, Path(config).stem, speed={"ratio": ratio, "of": of})


def measure_memory(arguments: argparse.Namespace) -> None:
    device = device_of(arguments.device)
    for config in arguments.configs:
        tokens, size = saved(
            config, arguments.precision[0], arguments.overrides, arguments.vocabulary, device
        )
        add(arguments.output, Path(config).stem, kilobytes=round(size / tokens / 1024, 1))


def measure_losses(arguments: argparse.Namespace) -> None:
    for config in arguments.configs:
        name = Path(config).stem
        known = read(arguments.output).get(name, {}).get("training")
        if known and known["updates"] == arguments.updates:
            continue
        recipe = load(
            config,
            [
                *arguments.overrides,
                f"training.stages.0.end={{updates: {arguments.updates}}}",
                f"training.save_every={SAVE_EVERY}",
                f"training.validation={{every_updates: {arguments.updates}, every_epochs: null}}",
            ],
        )
        run = arguments.runs / name
        begun = time.monotonic()
        train.train(recipe, run, arguments.device, quiet=True)
        records = map(json.loads, (run / METRICS).read_text(encoding="utf-8").splitlines())
        *_, last = (record for record in records if record["kind"] == "valid")
        training = {
            "updates": last["update"],
            "seed": recipe.training.seed,
            "loss": last["loss"],
            "accuracy": last["accuracy"],
        }
        add(arguments.output, name, training=training)
        print(
            f"{name}: loss {last['loss']:.4f}, {time.monotonic() - begun:.0f} s in this process",
            flush=True,
        )


def table(results: Results, names: list[str]) -> list[str]:
    """Return the lines of a table with a row for each config that has results."""
    lines = ["| config | validation loss | accuracy | speed | KB for each target token |"]
    lines.append("|---|---|---|---|---|")
    for name in names:
        values = results.get(name)
        if values is None:
            continue
        training, speed = values.get("training"), values.get("speed")
        cells = [
            name,
            f"{training['loss']:.3f}" if training else "",
            f"{100 * training['accuracy']:.1f} %" if training else "",
            f"{speed['ratio']:.2f}" if speed else "",
            str(values.get("kilobytes", "")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--updates", type=int, default=500, help="updates of a training")
    parser.add_argument("--runs", type=Path, default=Path("runs/smoke"), help="run folders")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "results" / "smoke" / "successors.json"
    )
    add_cpu_options(parser)
    arguments = parser.parse_args()
    if "speed" in arguments.only:
        measure_speeds(argparse.Namespace(**{**vars(arguments), "updates": 1}))
    if "memory" in arguments.only:
        measure_memory(arguments)
    if "loss" in arguments.only:
        measure_losses(arguments)
    names = [Path(config).stem for config in arguments.configs]
    print(*table(read(arguments.output), names), sep="\n")


if __name__ == "__main__":
    main()
