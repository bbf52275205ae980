"""The plan of the evidence: its trainings, their order, and the trainings that are left."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field, ValidationError, model_validator

from fusetk.config import Config
from fusetk.data import manifest
from fusetk.data.config import DataConfig
from fusetk.errors import ConfigError
from fusetk.experiment.places import text_settings
from fusetk.recipe import load
from fusetk.reporting.deviations import flat_values, short_keys
from fusetk.reporting.result_files import RunResult
from fusetk.reporting.runs import VALID
from fusetk.runs import num_averaged

METRICS = ("multi-bleu", "sacrebleu", "chrf")
EPOCHS = "training.stages.0.end.epochs"  # the key that ends a trial

Values = dict[str, Any]  # values of tuned keys


class TrialConfig(Config):
    """Keys whose values are compared in trials: trainings that end early."""

    epochs: int = Field(ge=1)
    """Epochs of a trial. A complete training without a trial takes part with its first epochs."""
    keys: list[str]


class PlanConfig(Config):
    """The content of a plan file; `recipes/evidence/plans` has those of the evidence."""

    tuning: dict[str, dict[str, list[Any]]]
    """Values of tuned keys, by the name of the tuning and the key. The first one is the recipe's.
    Each key is tuned with the best values of the keys before it; see `rounds` for the order."""
    trial: TrialConfig | None = None
    """The keys that are tuned with trials. The other ones are tuned with complete trainings."""
    seeds: list[int] = Field(min_length=1)
    """Seeds of each system. The first one is that of the tuning."""
    claims: list[tuple[str, str]] = []
    """Pairs of a baseline and a system whose difference is a claim of a paper."""
    claim_seeds: list[int] = []
    """Further seeds of the systems in `claims`. They are trained after all waves."""
    waves: list[dict[str, str]]
    """Systems with the names of their tuning. All systems of a wave complete a round of `rounds`
    before one of them begins the next round."""

    def epochs(self, key: str) -> int | None:
        """Return the epochs of the trainings that tune a key; None if they are complete."""
        return self.trial.epochs if self.trial and key in self.trial.keys else None

    def steps(self, system: str) -> dict[str, list[Any]]:
        """Return the tuned keys of a system, each with its values."""
        return self.tuning[next(wave[system] for wave in self.waves if system in wave)]

    def ordered_steps(self, system: str) -> list[tuple[str, list[Any]]]:
        """Return the tuned keys of a system with their values, keys with trials first."""
        return sorted(self.steps(system).items(), key=lambda step: self.epochs(step[0]) is None)

    def setting(self, options: Sequence[tuple[str, Any]]) -> str:
        """Return a name for folders, made of tuned keys and their values.

        Each key is its shortest end that is unique in the plan.
        """
        keys = {key for values in self.tuning.values() for key in values} | {EPOCHS}
        names = short_keys(sorted(keys))
        return ",".join(f"{names[key]}={value}" for key, value in options) or "own"

    def seeds_of(self, system: str) -> list[int]:
        """Return all seeds of a system."""
        claimed = any(system in pair for pair in self.claims)
        return [*self.seeds, *self.claim_seeds] if claimed else self.seeds

    @model_validator(mode="after")
    def _names_exist(self) -> "PlanConfig":
        seen: set[str] = set()
        for wave in self.waves:
            for system, name in wave.items():
                if name not in self.tuning:
                    raise ValueError(f"{system}: the plan has no tuning {name}")
                if system in seen:
                    raise ValueError(f"{system} is in two waves: remove it from one of them")
                seen.add(system)
        tuned = {key for values in self.tuning.values() for key in values}
        for key in self.trial.keys if self.trial else []:
            if key not in tuned:
                raise ValueError(f"trial.keys: {key} is not a key of a tuning")
        for system in (system for pair in self.claims for system in pair):
            if system not in seen:
                raise ValueError(f"claims: {system} is not in a wave of the plan")
        return self

    @model_validator(mode="after")
    def _seeds_differ(self) -> "PlanConfig":
        seeds = [*self.seeds, *self.claim_seeds]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds and claim_seeds have a seed twice: {seeds}")
        return self


class Job(NamedTuple):
    """A training of the plan."""

    system: str
    seed: int
    changes: tuple[tuple[str, Any], ...]  # tuned keys whose values differ from the recipe
    epochs: int | None  # the end of a trial
    setting: str = ""  # name of the values, for folders

    @property
    def options(self) -> list[tuple[str, Any]]:
        """Return all keys and values that differ from the recipe."""
        return [*self.changes, *([(EPOCHS, self.epochs)] if self.epochs else [])]

    @property
    def overrides(self) -> list[str]:
        """Return the overrides of the recipe, without the seed."""
        return [f"{key}={json.dumps(value)}" for key, value in self.options]

    @property
    def name(self) -> str:
        return f"{self.system}.seed{self.seed} ({self.setting})"


class Results:
    """The validation losses and the hours of each training, and the set of those that are done."""

    def __init__(self, plan: PlanConfig, results: Sequence[RunResult]):
        self.plan = plan
        self.texts: dict[str, set[str]] = {}  # fingerprints of prepared text, by its settings
        # The number of epochs and the loss of each validation.
        self.losses: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
        # Trainings with all scores, and those that have diverged.
        self.done: set[tuple[Any, ...]] = set()
        self.hours: list[float] = []  # hours of trainings on a device of the same kind as here
        for result in results:
            if not any(result.system in wave for wave in plan.waves):
                continue
            tuned = plan.steps(result.system)
            if not all(_follows_plan(key, result.overrides, tuned) for key in result.overrides):
                continue  # a training with other settings than those of the plan
            if result.training.data is not None:
                with suppress(ValidationError):  # the config is of another version of fusetk
                    data = DataConfig.model_validate({**result.config["data"], "folder": "unknown"})
                    self.texts.setdefault(_text_key(data), set()).add(result.training.data)
            config = flat_values(result.config)
            values = {key: config.get(key) for key in tuned}
            curve = result.valid_curve
            epochs = config.get(EPOCHS)
            key = _key(result.system, result.seed, values, epochs)
            self.losses[key] = [
                (math.inf if epoch is None else epoch, math.inf if loss is None else loss)
                for epoch, loss in zip(curve.get("epoch", []), curve.get("loss", []), strict=False)
            ]
            if has_all_scores(result):
                self.done.add(key)
            seconds = result.training.update_seconds
            same_kind = result.training.on_gpu == torch.cuda.is_available()
            if epochs is None and same_kind and seconds is not None:
                self.hours.append(seconds / 3600)

    def loss(
        self, system: str, seed: int, values: Values, epochs: int | None = None
    ) -> float | None:
        """Return the best validation loss of a training; None if it is not done.

        With ``epochs``, the loss is that of the trial; without a trial, it is the best one of the
        first epochs of the complete training. So a complete training on another device, whose
        losses differ, does not change a choice that the trials made.
        """
        losses = self.losses.get(_key(system, seed, values, epochs))
        if losses is None:
            losses = self.losses.get(_key(system, seed, values, None))
        if losses is None:
            return None
        end = math.inf if epochs is None else epochs
        return min((loss for epoch, loss in losses if epoch <= end), default=math.inf)

    def add_diverged(self, job: Job, own: Values) -> None:
        """Record an infinite loss for a training that has diverged; ``own`` is as in ``has``."""
        key = _key(job.system, job.seed, own | dict(job.changes), job.epochs)
        self.losses[key] = []
        self.done.add(key)

    def fits(self, data: DataConfig, prepared: Mapping[str, Any]) -> bool:
        """Whether a result with these settings of the text has this text, or there is none.

        ``prepared`` is the manifest of the prepared text.
        """
        known = self.texts.get(_text_key(data))
        return known is None or manifest.training_fingerprint(prepared) in known

    def has(self, job: Job, own: Values) -> bool:
        """Whether a training is done; ``own`` has the values of its recipe.

        A trial needs only its losses. A complete training also needs all scores, unless it has
        diverged.
        """
        values = own | dict(job.changes)
        if job.epochs is None:
            return _key(job.system, job.seed, values, None) in self.done
        return self.loss(job.system, job.seed, values, job.epochs) is not None


def has_all_scores(result: RunResult) -> bool:
    """Whether a test set has all ``METRICS`` of the best checkpoint and of an average."""
    metrics: dict[str, dict[str, set[str]]] = {}  # by test set and checkpoint
    for score in result.scores:
        if score.set_name != VALID:
            checkpoints = metrics.setdefault(score.set_name, {})
            checkpoints.setdefault(score.checkpoint, set()).add(score.metric)
    complete = [
        [name for name, scored in checkpoints.items() if scored.issuperset(METRICS)]
        for checkpoints in metrics.values()
    ]
    return any("best" in names and any(map(num_averaged, names)) for names in complete)


def rounds(
    plan: PlanConfig,
    system: str,
    own: Values,
    results: Results,
    unknown: float | None = None,
) -> Iterator[list[Job]]:
    """Yield the trainings of a system in rounds.

    These are the first training, one round for each key with several values, and all seeds with the
    best values. Keys with trials are tuned first. The seeds of ``plan.seeds`` are also trained
    before the other keys are tuned, so that there are results with several seeds early.

    ``own`` has the values of the recipe for the tuned keys. A round that depends on trainings that
    are not done is the last one: the rounds after it are not known yet. With ``unknown``, trainings
    that are not done have this loss, and all rounds follow.
    """
    first = plan.seeds[0]
    best = dict(own)

    def job(seed: int, values: Values, epochs: int | None = None) -> Job:
        changes = tuple((key, value) for key, value in values.items() if value != own[key])
        unnamed = Job(system, seed, changes, epochs)
        return unnamed._replace(setting=plan.setting(unnamed.options))

    yield [job(first, best)]
    tried = False
    for key, choices in plan.ordered_steps(system):
        if len(choices) == 1:
            continue
        candidates = [{**best, key: value} for value in choices]
        epochs = plan.epochs(key)
        if tried and not epochs:
            yield [job(seed, best) for seed in plan.seeds]
        tried = bool(epochs)
        # A trial of the best values is not needed: a training of an earlier round has them.
        yield [job(first, values, epochs) for values in candidates if not epochs or values != best]
        losses = [results.loss(system, first, values, epochs) for values in candidates]
        if unknown is not None:
            losses = [unknown if loss is None else loss for loss in losses]
        known = [loss for loss in losses if loss is not None]
        if len(known) < len(losses):
            return
        best = candidates[known.index(min(known))]
    yield [job(seed, best) for seed in plan.seeds_of(system)]


def jobs_left(plan: PlanConfig, own: Mapping[str, Values], results: Results) -> list[Job]:
    """Return the known trainings without a result, in the order of the plan.

    ``own`` has the values of each system's recipe for its tuned keys.
    """
    jobs: list[Job] = []
    for wave in plan.waves:
        by_round: list[list[Job]] = []
        for system in wave:
            for number, round_of_system in enumerate(rounds(plan, system, own[system], results)):
                by_round += [[] for _ in range(number + 1 - len(by_round))]
                by_round[number] += [
                    job for job in round_of_system if not results.has(job, own[system])
                ]
        jobs += [job for jobs_of_round in by_round for job in jobs_of_round]
    # The sort is stable: seeds of claims are the last, one after the other.
    order = {seed: i for i, seed in enumerate(plan.claim_seeds, 1)}
    jobs.sort(key=lambda job: order.get(job.seed, 0))
    return list({(job.system, job.seed, job.setting): job for job in jobs}.values())


def count_left(plan: PlanConfig, own: Mapping[str, Values], results: Results) -> int:
    """Return the number of trainings of the complete plan that have no result.

    It assumes that no unknown training is better than the known ones, and that the first values are
    the best if none is known.
    """
    return sum(
        not results.has(job, own[system])
        for wave in plan.waves
        for system in wave
        for job in {
            job
            for jobs in rounds(plan, system, own[system], results, unknown=math.inf)
            for job in jobs
        }
    )


def own_values(plan: PlanConfig, folder: Path) -> dict[str, Values]:
    """Return the values of each system's recipe for its tuned keys.

    Raises ConfigError if the plan lacks one of them, or if a recipe lacks a tuned key, ends after
    epochs, or has several stages and the plan has trials.
    """
    own: dict[str, Values] = {}
    for wave in plan.waves:
        for system in wave:
            path = folder / f"{system}.yaml"
            recipe = load(path)
            stages = len(recipe.training.stages)
            if plan.trial and plan.trial.keys and stages > 1:
                raise ConfigError(
                    f"{path}: training has {stages} stages, but a trial ends only the first one: "
                    "remove `trial` from the plan, or give the recipe one stage"
                )
            config = flat_values(recipe.model_dump(mode="json"))
            if config[EPOCHS] is not None:
                raise ConfigError(
                    f"{path}: {EPOCHS} is {config[EPOCHS]}: in a plan, this key ends trials only; "
                    "use another end, such as patience or updates"
                )
            own[system] = {key: config.get(key) for key in plan.steps(system)}
            for key, choices in plan.steps(system).items():
                if key not in config:
                    raise ConfigError(
                        f"{path}: the plan tunes {key}, which is not a key with a single value: "
                        f"choose a key in the output of `fusetk describe --config {path}`; for a "
                        "component, write the key of its kind, such as model.decoder.fuse.kind"
                    )
                if own[system][key] not in choices:
                    raise ConfigError(
                        f"{path}: {key} is {own[system][key]}, which is not a value of the plan: "
                        f"{', '.join(map(str, choices))}"
                    )
    return own


def _follows_plan(key: str, overrides: Collection[str], tuned: Collection[str]) -> bool:
    """Whether the plan can cause the override of ``key``: it is tuned, or its component is.

    If the kind of a component is tuned, the keys of the chosen kind are in ``overrides``, too.
    """
    kinds = [name for name in tuned if name in overrides and name.endswith(".kind")]
    components = tuple(name.removesuffix("kind") for name in kinds)
    return key in {*tuned, EPOCHS} or key.startswith(components)


def _text_key(data: DataConfig) -> str:
    return json.dumps(text_settings(data), sort_keys=True)


def _key(system: str, seed: int, values: Values, epochs: int | None) -> tuple[Any, ...]:
    # A plan may have 0 or 2e3 where the config of a run has 0.0 or 2000.
    numbers = json.loads(json.dumps(values), parse_int=float)
    return system, seed, epochs, json.dumps(numbers, sort_keys=True)
