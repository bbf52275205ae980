"""Classes outside fusetk: their state is saved or refused, and changes of their code are named."""

import copy
import itertools
import math
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor, nn

from fusetk import trace
from fusetk.cli.main import main
from fusetk.config import ComponentConfig, resolve
from fusetk.data.prepare import prepare
from fusetk.errors import ConfigError, FusetkError
from fusetk.files import code_checksums
from fusetk.fusion.base import LayerFusion, LayerFusionConfig
from fusetk.models.quantization import to_bf16, to_int8
from fusetk.models.transformer import Transformer
from fusetk.recipe import Recipe, load
from fusetk.reporting.parameters import count_parameters
from fusetk.resume import check_before_prep
from fusetk.runs import EMA, MODEL
from fusetk.system import build as build_model
from fusetk.system import load_model
from fusetk.train import train
from fusetk.training import gradients, loop, optim
from fusetk.training.average import average
from fusetk.training.checkpoint import load_optimizer, optimizer_tensors
from fusetk.training.config import EndConfig
from fusetk.training.optim import build, configured_by
from fusetk.training.optimizer_check import OptimizerCheck
from fusetk.training.progress import Progress, stage_ended, update_schedule
from fusetk.training.schedule import (
    INITIAL_STATE,
    Schedule,
    ScheduleConfig,
    ScheduleState,
    rate_of_update,
)
from fusetk.training.schedule import build as build_schedule
from fusetk.training.start_from import start_checkpoint, start_from
from fusetk.training.verify import verify
from tests.contracts.systems import build as contract_model

FUSE = "model.decoder.fuse={{kind: '{}:{}'}}"


class Stateful(LayerFusion):
    """A buffer that training changes, a random buffer, and one that checkpoints do not have."""

    Config = LayerFusionConfig

    def __init__(self, config: LayerFusionConfig, widths: Any, width: int, name: str):
        super().__init__(config, widths, width, name)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("basis", nn.init.orthogonal_(torch.empty(width, width)))
        self.normed = nn.BatchNorm1d(width)
        self.register_buffer("noise", torch.empty(width).normal_(), persistent=False)

    def fuse(self, layers: list[Tensor]) -> Tensor:
        x = torch.stack(layers).mean(0)
        if self.training:
            self.mean.lerp_(x.detach().flatten(0, -2).mean(0), 0.1)
        x = (x - self.mean) @ self.basis + self.noise
        return self.normed(x.flatten(0, -2)).view_as(x)


OTHER_CLASSES = """
import random

import torch
from torch import nn
from torch.nn import functional as F

from fusetk.fusion.base import LayerFusion
from fusetk.models.attend import AttendedSources
from fusetk.models.connect.base import SourcesConnection
from fusetk.models.residual.base import Residual
from fusetk.models.transformer import Transformer
from fusetk.training.schedule import Schedule, ScheduleConfig


class RandomConnection(SourcesConnection):
    def __init__(self, config, name):
        super().__init__(config, name)
        self.chosen = {}

    def register_input(self):
        count = self.num_outputs
        self.chosen[count] = random.randrange(count), torch.randperm(count)[0].item()
        return self.width

    def forward(self, outputs):
        return sum(outputs[i] for i in self.chosen[len(outputs)])


class ReadsWeight(Residual):
    def __init__(self, config, sublayer):
        super().__init__(config, sublayer)
        self.low = nn.Linear(sublayer.width, 2, bias=False)
        self.maps = nn.Sequential(nn.Linear(sublayer.width, 2, bias=False))

    def after(self, stream, y):
        y = F.linear(self.low(y), self.low.weight.t())
        return self.normed_output(stream + F.linear(self.maps(y), self.maps[0].weight.t()))


class Mean(LayerFusion):
    def fuse(self, layers):
        return torch.stack(layers).mean(0)


class MeanSource(AttendedSources):
    @property
    def widths(self):
        return [self.history_widths[-1]]

    def sources(self, memory):
        return [torch.stack(memory.history).mean(0)]


class OutputAndLower(AttendedSources):
    reads_output = True

    @property
    def widths(self):
        return [self.output_width, self.history_widths[1]]

    def sources(self, memory):
        return [memory.output, memory.history[1]]


class ReadsValues(LayerFusion):
    def fuse(self, layers):
        return layers[-1] * (1.0 if layers[-1].sum() > 0 else 2.0)


class NoModule(Transformer):
    def __init__(self, config, source_size, target_size):
        pass


class Exits(LayerFusion):
    def __init__(self, config, widths, width, name):
        raise SystemExit(3)


class ExitsInPass(LayerFusion):
    def fuse(self, layers):
        raise SystemExit("no layers")


class ExitingSchedule(Schedule):
    Config = ScheduleConfig

    def __init__(self, config, width):
        raise SystemExit


class NoSuper(Schedule):
    Config = ScheduleConfig

    def __init__(self, config):
        self.config = config


class Bug(LayerFusion):
    def fuse(self, layers):
        return layers[len(layers)] if torch.is_inference_mode_enabled() else layers[-1]
"""


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with ``OTHER_CLASSES``."""
    (tmp_path / "outside_others.py").write_text(OTHER_CLASSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "outside_others"


def test_random_structures_are_the_same_in_every_build(toy: Path, others: str) -> None:
    recipe = load(
        toy, [f"model.encoder.connect={others}:RandomConnection", "model.encoder.layers=6"]
    )
    state = random.getstate()
    models: list[Any] = [build_model(recipe, 20, 20) for _ in range(2)]
    first, second = (model.encoder.connect.chosen for model in models)
    assert first == second and random.getstate() == state


def test_a_class_may_read_values_while_it_is_built(toy: Path, others: str) -> None:
    for command in ("describe", "estimate"):
        words = [command, str(toy), "--set", f"model.encoder.connect={others}:RandomConnection"]
        words += ["--set", "model.encoder.layers=6"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
    words = ["estimate", str(toy), "--set", f"model.encoder.fuse={others}:ReadsValues"]
    said = CliRunner().invoke(main, [*words, "--device", "h100"]).stderr
    assert re.search(r"reads values of tensors \(.*outside_others.py, line \d+\)", said)


def test_shared_parameters_are_counted_once_with_an_outside_class(toy: Path, others: str) -> None:
    own, known = (
        count_parameters(load(toy, ["model.tie=target", f"model.decoder.fuse={fuse}"]), (20, 30))
        for fuse in (f"{{kind: '{others}:Mean', norm: true}}", "average")
    )
    assert own == known


@pytest.mark.parametrize("residual", ["plain", "hyper"])
def test_the_history_of_an_outside_attention_is_a_tuple(
    toy: Path, others: str, residual: str
) -> None:
    settings = [f"model.decoder.attend={others}:MeanSource", "model.norm=pre"]
    recipe = load(toy, [*settings, f"model.encoder.residual={residual}"])
    verify(build_model(recipe, 20, 20), 20, 20, ["a:B"])


def test_a_recurrent_encoder_keeps_the_states_that_an_outside_attention_reads(
    toy: Path, others: str
) -> None:
    model = "model={kind: recurrent, width: 16, encoder: {depth: 2}, decoder: {attend: '%s'}}"
    recipe = load(toy, [model % f"{others}:OutputAndLower"])
    verify(build_model(recipe, 20, 20), 20, 20, ["a:B"])


def test_a_stack_may_be_frozen(toy: Path) -> None:
    model: Any = build_model(load(toy), 20, 20)
    model.encoder.requires_grad_(False)
    verify(model, 20, 20, ["a:B"])


def test_maps_in_outside_classes_are_not_quantised(toy: Path, others: str) -> None:
    model = build_model(load(toy, [f"model.encoder.residual={others}:ReadsWeight"]), 20, 20).eval()
    src = torch.tensor([[5, 6, 3]])
    for convert in (to_bf16, to_int8):
        converted = copy.deepcopy(model)
        with torch.inference_mode():
            convert(converted)
            memory = converted.encode(src, torch.ones_like(src, dtype=torch.bool))
        assert memory.output.isfinite().all()


def test_a_subclass_of_a_map_is_not_quantised(toy: Path) -> None:
    class Doubling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    for convert in (to_bf16, to_int8):
        model: Any = build_model(load(toy), 20, 20).eval()
        network = model.encoder.layers[0].ffn
        network.out = Doubling(network.out.in_features, network.out.out_features)
        convert(model)
        assert type(network.out) is Doubling and type(network.hidden) is not nn.Linear


def test_an_error_in_an_outside_class_is_one_line(toy: Path, tmp_path: Path, others: str) -> None:
    run = tmp_path / "run"
    words = ["train", str(toy), "-r", str(run), "--set", f"model.decoder.fuse={others}:Bug"]
    CliRunner().invoke(main, [*words, "--set", "training.stages.0.end={updates: 1}"])
    source = tmp_path / "in"
    source.write_text("a\n")
    result = CliRunner().invoke(main, ["decode", "-m", str(run), "-i", str(source)])
    assert result.exit_code == 1
    said = (
        r"code outside fusetk failed: IndexError: .* \(.*outside_others.py, line \d+\): correct it"
    )
    assert re.search(said, result.stderr)


def recipe_with(toy: Path, fusion: str, *overrides: str, module: str = __name__) -> Recipe:
    return load(toy, [FUSE.format(module, fusion), *overrides])


def trained(recipe: Recipe, run: Path) -> dict[str, Tensor]:
    train(recipe, run, "cpu", quiet=True)
    return load_file(run / "checkpoints" / "last" / MODEL)


def test_buffers_are_saved_and_random_tensors_are_those_of_the_training(
    toy: Path, tmp_path: Path
) -> None:
    ema = "training.ema=0.9"
    whole = trained(recipe_with(toy, "Stateful", ema), tmp_path / "whole")
    trained(recipe_with(toy, "Stateful", ema, "training.stages.0.end.updates=4"), tmp_path / "part")
    resumed = trained(recipe_with(toy, "Stateful", ema), tmp_path / "part")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    buffers = {"mean", "basis", "normed.running_mean", "normed.num_batches_tracked"}
    assert {f"decoder.fuse.{name}" for name in buffers} <= whole.keys()

    for raw in (False, True):
        loaded = load_model(tmp_path / "whole" / "checkpoints" / "last", "cpu", raw)
        sizes = (len(loaded.pipeline.source_vocab), len(loaded.pipeline.target_vocab))
        initial: Any = build_model(loaded.recipe, *sizes)
        fuse: Any = loaded.model.decoder.fuse
        assert fuse.mean.any() and torch.equal(fuse.mean, whole["decoder.fuse.mean"])
        assert torch.equal(fuse.basis, initial.decoder.fuse.basis)
        assert torch.equal(fuse.noise, initial.decoder.fuse.noise)
    runs = [tmp_path / "whole" / "checkpoints" / f"update-000000{update}" for update in (4, 8)]
    average(runs, tmp_path / "average")
    averaged, early = load_file(tmp_path / "average" / MODEL), load_file(runs[0] / MODEL)
    counter = "decoder.fuse.normed.num_batches_tracked"
    assert torch.equal(averaged[counter], whole[counter]) and early[counter] < whole[counter]
    mean = (early["decoder.fuse.mean"].double() + whole["decoder.fuse.mean"]) / 2
    assert torch.equal(averaged["decoder.fuse.mean"], mean.float())
    assert "decoder.fuse.mean" not in load_file(tmp_path / "whole" / "checkpoints" / "last" / EMA)
    start = recipe_with(toy, "Stateful", f"training.start_from={tmp_path / 'whole'}")
    model = build_model(start, *sizes)
    start_from(model, *start_checkpoint(tmp_path / "whole"), loaded.pipeline)
    started: Any = model.decoder.fuse
    assert torch.equal(started.mean, load_model(tmp_path / "whole", "cpu").model.decoder.fuse.mean)


def test_only_complete_updates_change_buffers(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation with dropout, and an update that fails, leave them as before."""
    batches = "training.stages.0.batch.accumulate=2"
    pairs = "training.validation.train_pairs=5"
    whole = trained(recipe_with(toy, "Stateful", batches), tmp_path / "whole")
    assert whole["decoder.fuse.mean"].any()
    validated = trained(recipe_with(toy, "Stateful", batches, pairs), tmp_path / "validated")
    assert all(torch.equal(whole[name], validated[name]) for name in whole)
    for module, name, call in ((gradients, "collate", 6), (loop, "rate_of_update", 3)):
        run = tmp_path / name
        with monkeypatch.context() as context:
            context.setattr(module, name, failing(getattr(module, name), call))
            with pytest.raises(KeyError):
                trained(recipe_with(toy, "Stateful", batches), run)
        assert (run / "checkpoints" / "update-0000002").exists()
        resumed = trained(recipe_with(toy, "Stateful", batches), run)
        assert all(torch.equal(whole[name], resumed[name]) for name in whole), name


def test_a_skipped_update_does_not_change_buffers(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop.optimizer_step

    def overflowing(model: nn.Module, *arguments: Any, **options: Any) -> Any:
        parameter = next(model.parameters())
        assert parameter.grad is not None
        parameter.grad.fill_(torch.inf)
        return step(model, *arguments, **options)

    monkeypatch.setattr(loop, "optimizer_step", overflowing)
    run = tmp_path / "run"
    ended = trained(recipe_with(toy, "Stateful", "training.stages.0.end.updates=1"), run)
    assert "update 1 skipped: its gradient is not finite" in (run / "log.txt").read_text()
    assert not ended["decoder.fuse.mean"].any()
    assert ended["decoder.fuse.normed.num_batches_tracked"] == 0


def failing(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return the function, whose call of this number raises KeyError."""
    calls = itertools.count(1)

    def call(*arguments: Any) -> Any:
        if next(calls) == number:
            raise KeyError("lost")
        return function(*arguments)

    return call


def test_a_backbone_that_overrides_decode_is_trained_as_it_decodes() -> None:
    class Tripled(Transformer):
        def decode(self, tgt_in: Tensor, state: Any) -> Any:
            features, state = super().decode(tgt_in, state)
            return 3 * features, state

    class Same(Transformer):
        """Overrides nothing."""

    class Mixin:
        def decode(self, tgt_in: Tensor, state: Any) -> Any:
            raise NotImplementedError

    class Mixed(Mixin, Transformer):  # type: ignore[misc]
        """Overrides decode by another base class."""

    assert not Mixed.packs

    class Packed(Tripled):
        packs = True

    assert (Same.packs, Tripled.packs, Packed.packs) == (True, False, True)
    model = contract_model("transformer").eval()
    src, tgt = torch.randint(4, 9, (2, 5)), torch.randint(4, 9, (2, 6))
    mask = torch.ones(2, 5, dtype=torch.bool)
    tokens = torch.arange(12)
    plain = model(src, mask, tgt, tokens)
    model.__class__ = Tripled
    assert torch.allclose(model(src, mask, tgt, tokens), 3 * plain, atol=1e-5)


@pytest.mark.parametrize("kind", ["transformer", "conv", "coordinated", "recurrent"])
@pytest.mark.parametrize("method", ["encode", "start", "decode"])
def test_training_calls_the_overridden_method_of_each_backbone(kind: str, method: str) -> None:
    model = contract_model(kind)
    calls: list[str] = []

    def override(self: Any, *arguments: Any) -> Any:
        calls.append(method)
        return getattr(super(own, self), method)(*arguments)

    own = type("Own", (type(model),), {method: override})
    src, tgt = torch.randint(4, 9, (2, 5)), torch.randint(4, 9, (2, 6))
    lengths = (torch.tensor([5, 5]), torch.tensor([6, 6]))
    arguments = src, torch.ones(2, 5, dtype=torch.bool), tgt, torch.arange(12), lengths
    expected = model.eval()(*arguments)
    model.__class__ = own
    torch.testing.assert_close(model(*arguments), expected, rtol=1e-4, atol=1e-5)
    assert calls == [method]


# Optimisers and schedules -------------------------------------------------------------------------


class Rule(torch.optim.Optimizer):
    """Gradient descent that keeps state in the place that ``keep`` chooses."""

    def __init__(self, parameters: Any, keep: Callable[[Any, Tensor], None]):
        super().__init__(parameters, {"lr": 0.1, "count": 0, "seen": [], "none": math.nan})
        self.keep = keep

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
                self.keep(self, parameter)


def numbers(rule: Rule, parameter: Tensor) -> None:
    state = rule.state[parameter]
    state["sum"] = state.get("sum", 0.1) / 3
    state["steps"] = state.get("steps", 2**40) + 1


def in_group(rule: Rule, parameter: Tensor) -> None:
    rule.param_groups[0]["count"] += 1


def in_state(rule: Rule, parameter: Tensor) -> None:
    rule.state["total"] = {"a": 1}  # type: ignore[index]


def in_list(rule: Rule, parameter: Tensor) -> None:
    rule.state[parameter]["last"] = [parameter.grad]


def in_new_option(rule: Rule, parameter: Tensor) -> None:
    rule.param_groups[0]["steps"] = 1


def in_list_of_group(rule: Rule, parameter: Tensor) -> None:
    rule.param_groups[0]["seen"].append(1)


def under_two_names(rule: Rule, parameter: Tensor) -> None:
    rule.state[parameter].update(a=parameter.grad, b=parameter.grad)


def with_colon(rule: Rule, parameter: Tensor) -> None:
    rule.state[parameter]["a:b"] = 1


def too_large(rule: Rule, parameter: Tensor) -> None:
    rule.state[parameter]["a"] = 2**64


def step(keep: Callable[[Any, Tensor], None]) -> tuple[nn.Module, Rule, OptimizerCheck]:
    module = nn.Linear(2, 2)
    rule = Rule(module.parameters(), keep)
    check = OptimizerCheck(rule)
    module(torch.ones(1, 2)).sum().backward()
    rule.step()
    return module, rule, check


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (in_group, "changes the option 'count' of a parameter group in a step"),
        (in_new_option, "changes the option 'steps' of a parameter group in a step"),
        (in_list_of_group, "changes the option 'seen' of a parameter group in a step"),
        (in_state, "has state['total'], whose key is not a parameter"),
        (in_list, "has 'last' of type list in state[parameter]"),
        (under_two_names, "shares the memory of 'b' with another tensor of its state"),
        (with_colon, "has the key 'a:b' in state[parameter]"),
        (too_large, "has 'a' with more than 64 bits in state[parameter]"),
    ],
)
def test_state_that_a_checkpoint_cannot_hold_is_refused(
    keep: Callable[[Any, Tensor], None], message: str
) -> None:
    *_, check = step(keep)
    with pytest.raises(ConfigError, match="the optimiser Rule " + re.escape(message)):
        check.check()


def test_numbers_in_the_state_of_an_optimiser_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, rule, check = step(numbers)
    check.check()
    tensors = optimizer_tensors(module, rule)
    monkeypatch.setattr("fusetk.training.checkpoint.read_tensors", lambda *_: tensors)
    other = Rule(module.parameters(), numbers)
    load_optimizer(module, other, tmp_path)
    assert (
        other.state[module.weight]
        == rule.state[module.weight]
        == {
            "sum": 0.1 / 3,
            "steps": 2**40 + 1,
        }
    )


@configured_by(ComponentConfig)
def nothing(config: ComponentConfig, parameters: Any) -> None:
    """Forgets its result."""


@configured_by(ComponentConfig)
def counting(config: ComponentConfig, parameters: Any) -> Rule:
    return Rule(parameters, in_group)


def test_a_training_refuses_such_an_optimiser_at_its_first_update(
    toy: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="nothing returned NoneType, which is not an optimiser"):
        build(ComponentConfig(kind=f"{__name__}:nothing"), [])
    optimizer = f"training.stages.0.optimizer={__name__}:counting"
    with pytest.raises(ConfigError, match="changes the option 'count'"):
        train(load(toy, [optimizer]), tmp_path / "run", "cpu", quiet=True)
    assert "update 3" not in (tmp_path / "run" / "log.txt").read_text()  # log_every: 3


class Own(Schedule):
    Config = ComponentConfig

    def __init__(self, value: Any):
        self.value = value

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> Any:
        return self.value

    def after_validation(
        self, state: ScheduleState, value: float, lower_is_better: bool, epoch: int
    ) -> ScheduleState:
        return {"seen": self.value} if self.value else None  # type: ignore[return-value]


def test_numbers_of_numpy_and_tensors_are_learning_rates() -> None:
    for value in (np.float32(0.5), torch.tensor(0.5), 0.5):
        rate = rate_of_update(Own(value), 1, {})
        assert type(rate) is float and rate == 0.5
    for wrong in ("0.5", 10**400, None):
        with pytest.raises(FusetkError, match="returned the learning rate"):
            rate_of_update(Own(wrong), 1, {})


def test_a_schedule_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "rate", lambda self, update: 1 / update)
    with pytest.raises(FusetkError, match=r"test_outside:Own failed for update 3 .* TypeError"):
        rate_of_update(Own(0.5), 3, {})


def test_a_schedule_that_fails_after_a_validation_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Own, "after_validation", lambda self, state, value: state)
    with pytest.raises(FusetkError, match=r"lower_is_better, epoch\) of .*:Own failed: TypeError"):
        update_schedule(Progress(), Own(0.5), "loss", 1.0)


def test_a_schedule_that_fails_with_its_new_state_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "rate", lambda self, update, state: 0.5 / (not state))
    said = "test_outside:Own failed for update {} .* ZeroDivisionError"
    progress = Progress(stage_update=1)
    with pytest.raises(FusetkError, match=said.format(2)):
        update_schedule(progress, Own(0.5), "loss", 1.0)
    assert progress.schedule_state
    with pytest.raises(FusetkError, match=said.format(1)):
        stage_ended(EndConfig(rate=0.1), progress, Own(0.5))


def test_a_schedule_reads_only_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter((0.5, 0.25))
    monkeypatch.setattr(Own, "rate", lambda self, update, state: next(rates))
    with pytest.raises(FusetkError, match=r"Own returned two learning rates, 0.5 and 0.25, for "):
        rate_of_update(Own(0.5), 3, {})


class Shrinking(Own):
    """Reduces its rate once for each update."""

    last = 0

    def rate(self, update: int, state: ScheduleState = INITIAL_STATE) -> float:
        if update != self.last:
            self.value *= 0.9
            self.last = update
        return float(self.value)


def test_a_schedule_has_no_state_of_its_own() -> None:
    with pytest.raises(FusetkError, match="Shrinking changed the attribute value, which"):
        rate_of_update(Shrinking(0.5), 1, {})


class LiteralKindConfig(LayerFusionConfig):
    kind: Literal["other"] = "other"  # type: ignore[assignment]


class LiteralKind(LayerFusion):
    Config = LiteralKindConfig


def test_a_config_class_must_accept_the_name_of_its_component() -> None:
    with pytest.raises(ValueError, match=r"declare `kind: str` in its class LiteralKindConfig"):
        resolve(f"{__name__}:LiteralKind", {}, LayerFusion)


def test_a_schedule_and_a_model_that_cannot_be_built_are_named(toy: Path, others: str) -> None:
    with pytest.raises(ConfigError, match=r"NoSuper cannot be built .* TypeError: .*__init__\(\)"):
        build_schedule(ScheduleConfig(kind=f"{others}:NoSuper"), 8)
    with pytest.raises(ConfigError, match=r"NoModule cannot be built: .* call super\(\).__init__"):
        build_model(load(toy, [f"model.kind={others}:NoModule"]), 20, 20)


def test_the_state_of_a_schedule_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress()
    with pytest.raises(FusetkError, match=r"test_outside:Own has a state that a checkpoint"):
        update_schedule(progress, Own(np.float32(0.5)), "loss", 1.0)
    monkeypatch.setattr(Own, "after_tie", lambda self, state, value, epoch: {"seen": {value}})
    with pytest.raises(FusetkError, match=r"method after_tie\(state, value, epoch\) return"):
        update_schedule(progress, Own(0.5), "loss", 1.0, is_tie=True)
    with pytest.raises(FusetkError, match="NoneType"):
        update_schedule(progress, Own(0.0), "loss", 1.0)
    assert update_schedule(progress, Own(0.5), "loss", 1.0) is None
    assert progress.schedule_state == {"seen": 0.5}


# Errors -------------------------------------------------------------------------------------------

FUSION = """
from fusetk.fusion.base import {base}, {config}

class Own({base}):
    Config = {config}

    def fuse(self, layers):
        return layers[-1]
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module that can be imported during the test."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(name: str, text: str) -> None:
        (folder / f"{name}.py").write_text(text)

    return write


def test_a_change_of_the_code_is_named(
    toy: Path,
    tmp_path: Path,
    outside: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = FUSION.format(base="LayerFusion", config="LayerFusionConfig")
    outside("outside_changed", text)
    recipe = recipe_with(toy, "Own", module="outside_changed")
    run = tmp_path / "run"
    for module_text, changed in ((text, False), (text, False), (text + "\n# other\n", True)):
        outside("outside_changed", module_text)
        lines: list[str] = []
        if (run / "log.txt").exists():
            load_model(run, "cpu", report=lines.append)
        said = "warning: the code of the module outside_changed was changed after the training"
        assert (said in lines) == changed
        train(recipe, run, "cpu", quiet=True)
        log = (run / "log.txt").read_text()
        line = "warning: the code of the module outside_changed was changed"
        assert (line in log) == (line in capsys.readouterr().err) == changed
    words = ["-m", str(run), "--what", "fuse", "-o", str(tmp_path / "a.png")]
    words += ["-s", "der", "-t", "the"]
    drawn = CliRunner().invoke(main, ["plot-attention", *words])
    assert said in drawn.stderr
    assert code_checksums(["outside_changed:Own", "outside_none:Own", "builtins:Own"]).keys() == {
        "outside_changed"
    }
    (tmp_path / "modules" / "outside_changed.py").unlink()
    assert code_checksums(["outside_changed:Own"]) == {}
    del sys.modules["outside_changed"]
    averaged = CliRunner().invoke(main, ["average", str(run), "--last", "1"])
    assert averaged.exit_code == 0, "a mean of tensors needs no module"


def test_prep_keeps_the_text_of_a_run_if_a_step_changed(
    toy: Path, tmp_path: Path, outside: Callable[[str, str], None]
) -> None:
    text = "from fusetk.data.steps.lowercase import Lowercase\n"
    text += "class Own(Lowercase):\n    step: str\n"
    outside("outside_step_code", text)
    steps = "data.steps=[{step: outside_step_code:Own}]"
    recipe = load(toy, [steps, f"data.folder={tmp_path / 'prepared'}"])
    prepare(recipe.data)
    train(recipe, tmp_path / "run", "cpu", quiet=True)
    check_before_prep(recipe, tmp_path / "run")
    outside("outside_step_code", text + "# other\n")
    said = "the code of outside_step_code changed since .* train without --prep"
    with pytest.raises(ConfigError, match=said):
        check_before_prep(recipe, tmp_path / "run")
    lines: list[str] = []
    load_model(tmp_path / "run", "cpu", report=lines.append)
    assert any("the code of the module outside_step_code was changed" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("outside_name:Own", r"'missing' is not defined \(\S+outside_name\.py, line 2\)"),
        ("outside_deep:Own", r"TypeError: .* \(\S+outside_deep\.py, line 2\)"),
        ("outside_exit:Own", "cannot be imported: SystemExit: 3"),
        ("modules/outside_name.py:Own", "it is a path; name the module, outside_name, and set"),
        ("outside_name.py:Own", "it is a path; name the module, outside_name, and set"),
        ("outside_name.Own", "did you mean 'outside_name:Own'"),
    ],
)
def test_the_error_of_an_import_has_its_place(
    toy: Path, outside: Callable[[str, str], None], kind: str, message: str
) -> None:
    outside("outside_name", "value = 1\nmissing\n")
    outside("outside_exit", "raise SystemExit(3)\n")
    outside("outside_deep", "import torch\nlayer = torch.nn.Linear('a', 2)\n")
    with pytest.raises(ConfigError, match=message):
        load(toy, [f"model.decoder.fuse={{kind: '{kind}'}}"])


def test_the_config_of_a_fusion_has_the_options_of_its_base(
    toy: Path, outside: Callable[[str, str], None]
) -> None:
    outside("outside_config", FUSION.format(base="LayerFusion", config="FusionConfig"))
    with pytest.raises(ConfigError, match=r"a subclass of fusetk\.fusion\.base\.LayerFusionConfig"):
        recipe_with(toy, "Own", module="outside_config")


CHECKED = """
from fusetk.fusion.base import LayerFusion, LayerFusionConfig

class Checked(LayerFusionConfig):
    {method}

class Own(LayerFusion):
    Config = Checked
"""


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("def check(self): pass", r"TypeError: Checked\.check\(\) takes 1 .*: correct the methods"),
        ("def check(self, layers): self.no", r"AttributeError: .*outside_check\.py, line 5\)"),
    ],
)
def test_a_config_class_whose_check_fails_is_named(
    toy: Path, outside: Callable[[str, str], None], method: str, message: str
) -> None:
    outside("outside_check", CHECKED.format(method=method))
    sys.modules.pop("outside_check", None)
    for kind in ("outside_check:Own", "{kind: 'outside_check:Own'}"):
        with pytest.raises(ConfigError, match=f"outside_check:Own cannot be checked: {message}"):
            load(toy, [f"model.decoder.fuse={kind}"])


def test_a_fusion_must_return_a_tensor_of_the_shape_of_the_layers() -> None:
    for result, message in ((None, "the type NoneType"), (torch.ones(1), r"the shape \(1,\)")):

        class Wrong(LayerFusion):
            def fuse(self, layers: list[Tensor], result: Any = result) -> Any:
                return result

        fusion = Wrong(LayerFusionConfig(kind="wrong"), [4, 4], 4, "decoder.fuse")
        with pytest.raises(ConfigError, match=rf"Wrong \(decoder\.fuse\) returned {message}"):
            fusion([torch.ones(2, 4)] * 2)


def of_the_first(config: ComponentConfig, parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([next(iter(parameters))], lr=0.0)


def of_two_groups(config: ComponentConfig, parameters: Any) -> torch.optim.Optimizer:
    groups = [
        [p for p in parameters if p.requires_grad and (p.dim() > 1) == wide] for wide in (0, 1)
    ]
    return torch.optim.SGD([{"params": group} for group in groups], lr=0.0)


def without_config(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def test_an_optimiser_that_cannot_be_built_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optim.OPTIMIZERS, "short", without_config)
    with pytest.raises(ConfigError, match=r"short cannot be built with .config, param.*TypeError"):
        build(ComponentConfig(kind="short"), nn.Linear(2, 2).parameters())


def exiting(config: ComponentConfig, parameters: Any) -> torch.optim.Optimizer:
    raise SystemExit(3)


def test_a_class_that_exits_while_it_is_built_is_named(
    monkeypatch: pytest.MonkeyPatch, toy: Path, others: str
) -> None:
    with pytest.raises(ConfigError, match=r"ExitingSchedule cannot be built .* SystemExit: "):
        build_schedule(ScheduleConfig(kind=f"{others}:ExitingSchedule"), 8)
    monkeypatch.setitem(optim.OPTIMIZERS, "exiting", exiting)
    with pytest.raises(ConfigError, match=r"exiting cannot be built with .* SystemExit: 3"):
        build(ComponentConfig(kind="exiting"), nn.Linear(2, 2).parameters())
    for name, message in (
        ("Exits", rf"{others}:Exits cannot be built: SystemExit: 3 \(.*, line \d+\)"),
        ("ExitsInPass", rf"{others}:ExitsInPass cannot compute: SystemExit: no layers \("),
    ):
        setting = f"model.decoder.fuse={others}:{name}"
        result = CliRunner().invoke(main, ["describe", str(toy), "--set", setting])
        assert result.exit_code == 2 and re.search(message, result.stderr)


def with_closure(config: ComponentConfig, parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters)


def test_an_optimiser_that_needs_a_closure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optim.OPTIMIZERS, "closure", with_closure)
    with pytest.raises(ConfigError, match="optimiser of closure cannot be called without argu"):
        build(ComponentConfig(kind="closure"), nn.Linear(2, 2).parameters())


def test_an_optimiser_has_all_trainable_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optim.OPTIMIZERS, "first", of_the_first)
    monkeypatch.setitem(optim.OPTIMIZERS, "two", of_two_groups)
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="lacks 3 of the 4 trainable parameters"):
        build(ComponentConfig(kind="first"), module.parameters())
    module[1].requires_grad_(False)
    groups = build(ComponentConfig(kind="two"), module.parameters()).param_groups
    assert [len(group["params"]) for group in groups] == [1, 1]


def test_the_earlier_name_of_is_listening_for_continues_to_work() -> None:
    with trace.listen("encoder.*"):
        assert trace.is_recorded("encoder.fuse.gate") and not trace.is_recorded("decoder.fuse.gate")
