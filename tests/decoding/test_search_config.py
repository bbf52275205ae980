"""Settings of the search: other names of keys, and options of the command line."""

import logging
from typing import Any

import click
import pytest

from fusetk.cli.config_options import search_fields
from fusetk.cli.decode import command
from fusetk.decoding import config as module
from fusetk.decoding.config import SearchConfig
from fusetk.errors import ConfigError
from fusetk.system import changed


@pytest.fixture(autouse=True)
def _new_notices():
    module._notify.cache_clear()


def test_length_penalty_is_another_name_for_normalize(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settings = [SearchConfig.model_validate({"length_penalty": 0.6}) for _ in range(2)]
    assert [config.normalize for config in settings] == [0.6, 0.6]
    assert caplog.messages == ["decoding.length_penalty is read as decoding.normalize"]
    assert changed(SearchConfig(normalize=0.2), {"length_penalty": 0.7}).normalize == 0.7


def test_changes_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="n_best 3 is more than beam 1"):
        changed(SearchConfig(), {"beam": 1, "n_best": 3})


def test_two_names_for_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="length_penalty and normalize are two names of one key"):
        SearchConfig.model_validate({"length_penalty": 0.6, "normalize": 1.0})


@pytest.mark.parametrize(
    "option",
    [
        {"word_penalty": 3e37},
        {"word_penalty": -1e308},
        {"coverage_penalty": 1e39},
        {"diversity": 1e39, "groups": 5},
        {"temperature": 1e39, "sample": True},
        {"min_length": 10**8},
        {"beam": 10**23},
    ],
)
def test_numbers_that_a_search_cannot_use_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))}\n.* than or equal to"):
        SearchConfig.model_validate(option)


def test_every_option_of_the_search_follows_from_its_field() -> None:
    """Each option has the type and the bounds of the field, and its text as help."""
    options = {option.name: option for option in command.params}
    assert set(search_fields()) == SearchConfig.model_fields.keys() - {"max_source_length"}
    for name in search_fields():
        option = options[name]
        assert isinstance(option, click.Option) and option.default is None
        assert f"--{name.replace('_', '-')}" in option.opts and option.help
    assert isinstance(options["stop"].type, click.Choice)
    assert tuple(options["stop"].type.choices) == ("exact", "beam", "first")
    top_p = options["top_p"].type
    assert isinstance(top_p, click.FloatRange)
    assert (top_p.min, top_p.min_open, top_p.max, top_p.max_open) == (0, True, 1, False)
    seed = options["seed"].type
    assert isinstance(seed, click.IntRange) and (seed.max, seed.max_open) == (1 << 64, True)
    assert options["forbid_unknown"].is_flag and options["beam"].opts[:2] == ["-b", "--beam"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sample": True, "beam": 5}, "beam has no effect on samples"),
        ({"sample": True, "stop": "exact"}, "stop has no effect on samples"),
        ({"sample": True, "groups": 1}, "groups has no effect on samples"),
        ({"normalize": 0, "penalty": "power"}, "penalty has no effect with normalize 0"),
        ({"top_k": 0}, "top_k has an effect on samples only"),
    ],
)
def test_given_settings_without_an_effect_are_refused(
    settings: dict[str, Any], reason: str
) -> None:
    """Also with their default values, from Python as on the command line."""
    with pytest.raises(ConfigError, match=reason):
        changed(SearchConfig(), settings)


@pytest.mark.parametrize(
    ("config", "settings", "advice"),
    [
        ({"beam": 4, "groups": 2}, {"sample": True}, {"groups": 1}),
        ({"coverage_penalty": 0.2}, {"sample": True}, {"coverage_penalty": 0.0}),
        ({"normalize": 0.6, "word_penalty": 0.3}, {"normalize": 1}, {"word_penalty": 0.0}),
        ({"normalize": 0.6, "word_penalty": 0.3}, {"length_penalty": 1}, {"word_penalty": 0.0}),
        ({"beam": 4, "groups": 2, "diversity": 0.7}, {"groups": 1}, {"diversity": 0.5}),
        ({"sample": True, "top_k": 5}, {"sample": False}, {"top_k": 0}),
    ],
)
def test_a_default_may_replace_a_setting_of_a_run(
    config: dict[str, Any], settings: dict[str, Any], advice: dict[str, Any]
) -> None:
    """A setting of the run that excludes the user's settings is reset as the error advises."""
    run = SearchConfig(**config)
    [(key, value)] = advice.items()
    with pytest.raises(ConfigError, match=f"set {key} to {value}"):
        changed(run, settings)
    assert getattr(changed(run, {**settings, key: value}), key) == value


def test_settings_of_a_run_may_have_no_effect() -> None:
    config = SearchConfig(beam=8, stop="beam", penalty="gnmt")
    assert changed(config, {"sample": True, "normalize": 0}).sample
