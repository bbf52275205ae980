"""YAML files to validated, frozen config objects: ``extends``, ``--set a.b=c``, every error at once with its place.

This file knows no section: ``fusetk.recipe`` says what a run's config holds, and each config class stands beside the
class that it configures.
"""

import copy
import difflib
import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import pydantic
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from fusetk.errors import ConfigError

Place = tuple[str | int, ...]


NONE = ("none", "None")  # as people write null


class Config(BaseModel):
    """Base of every config class: immutable, unknown keys are errors, the text under a field is its documentation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _none_is_null(cls, values: Any) -> Any:
        """Take the word none for null where a key may be null and none is not a word that it may have."""
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        return {
            key: None
            if value in NONE and key in fields and _only_null(fields[key].annotation)
            else value
            for key, value in values.items()
        }


C = TypeVar("C", bound=Config)


def _nullable(annotation: Any) -> bool:
    """Whether a key of this type may be null."""
    return type(None) in get_args(annotation)


def _only_null(annotation: Any) -> bool:
    """Whether a key of this type may be null, and cannot have the word none as its value."""
    members = get_args(annotation)
    return _nullable(annotation) and not any(
        member is str or any(word in get_args(member) for word in NONE) for member in members
    )


# Plug-ins ------------------------------------------------------------------------------------------------------------


def resolve(kind: str, table: Mapping[str, type], base: type = object) -> Any:
    """The class that ``kind`` names: a key of ``table``, or ``package.module:Name`` of a subclass of ``base`` outside fusetk.

    Raises ValueError with the known names, or with the reason why an import failed.
    """
    if kind in table:
        return table[kind]
    module, colon, name = kind.partition(":")
    if not colon:
        near = difflib.get_close_matches(kind, table, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no kind {kind!r}.{hint} Known: {', '.join(table)}; or package.module:Name"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the outside module raises, its author wants to see it
        raise ValueError(f"{kind!r} cannot be imported: {type(error).__name__}: {error}") from error
    config = getattr(base, "Config", ComponentConfig)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{kind!r} is no subclass of {base.__module__}.{base.__name__}")
    if not issubclass(getattr(found, "Config", type(None)), config):
        raise ValueError(
            f"{kind!r} has no Config that is a subclass of {config.__module__}.{config.__name__}"
        )
    return found


class component:
    """Annotate a field that holds the config of one class in ``table``, which its key ``kind`` names.

    ``fuse: Annotated[FusionConfig, component(FUSIONS, "a fusion", Fusion)]`` accepts the ``Config`` of each fusion.
    ``fuse: average`` is short for ``fuse: {kind: average}``.
    """

    def __init__(self, table: Mapping[str, type], what: str, base: type = object):
        self.table, self.what, self.base = table, what, base

    def __get_pydantic_core_schema__(
        self, source: type, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        validator = BeforeValidator(self._pick, json_schema_input_type=str | dict[str, Any])
        return handler.generate_schema(Annotated[SerializeAsAny[source], validator])  # type: ignore[misc, valid-type]

    def _pick(self, value: Any) -> Any:
        if isinstance(value, ComponentConfig):
            return value
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            context = {"what": self.what, "known": ", ".join(self.table)}
            raise PydanticCustomError("choice", "{what}: give its kind, one of {known}", context)
        try:
            config: type[Config] = resolve(value["kind"], self.table, self.base).Config
        except ValueError as error:
            context = {"what": self.what, "error": str(error)}
            raise PydanticCustomError("choice", "{what}: {error}", context) from error
        try:
            return config.model_validate(value)
        except pydantic.ValidationError as error:  # `parse` combines the paths of nested errors
            details = {"errors": error.errors(), "kind": config}
            raise PydanticCustomError("nested", "invalid", details) from None


class ComponentConfig(Config):
    """Base of the configs that a ``kind`` chooses."""

    kind: str
    """Which one: a registered name, or `package.module:Name` of a class outside fusetk."""


# Reading -------------------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Where a key was written."""

    text: str  # "file, line n", or the option of the command line
    folder: Path  # what relative paths in its value are relative to


class Document:
    """A config as nested dicts and lists, and where each key was written."""

    def __init__(self, values: dict[str, Any], origins: dict[Place, Origin]):
        self.values = values
        self.origins = origins

    def where(self, place: Place) -> Origin:
        """Where a key was written, or the nearest key above it."""
        while place and place not in self.origins:
            place = place[:-1]
        return self.origins.get(place, Origin("", Path()))


def load(path: Path | str, overrides: Sequence[str] = ()) -> Document:
    """Read a YAML file, what it extends, and then ``a.b=value`` overrides, the later winning key by key.

    Raises ConfigError for a file that cannot be read or parsed, or an override without ``=``.
    """
    document = _read(Path(os.path.normpath(path)), ())
    for override in overrides:
        _override(document, override)
    return document


def parse(document: Document, kind: type[C]) -> C:
    """Validate; raises ConfigError that lists every error with its path, place and, for a typing error, the nearest key."""
    try:
        return kind.model_validate(document.values)
    except pydantic.ValidationError as error:
        raise error_of(
            [_sentence(document, *found) for found in _flatten(kind, error.errors())]
        ) from None


def error_of(sentences: Sequence[str]) -> ConfigError:
    """One error from a sentence for each key that is wrong."""
    lines = list(dict.fromkeys(sentences))
    head = "the config has an error" if len(lines) == 1 else f"the config has {len(lines)} errors"
    return ConfigError(f"{head}:\n" + "\n".join(f"  {line}" for line in lines))


def expand_path(path: str) -> str:
    """Replace `~`, `~USER`, `$NAME` and `${NAME}` in a path as a shell does.

    Raises ValueError for an environment variable that is not set or empty, and for a user without a home folder.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise ValueError(
                f"the environment variable {name} in {path!r} is not set or empty; set it, or write the path out"
            )
        return os.environ[name]

    expanded = os.path.expanduser(path)
    if path.startswith("~") and expanded == path:
        raise ValueError(
            f"{path.partition('/')[0]} in {path!r} has no home folder; write ./~ for a name that begins with ~"
        )
    return _VARIABLE.sub(value_of, expanded)


_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([^}]*)\})")


def dump(config: Config) -> str:
    """The resolved config as YAML: everything that is set or defaulted, readable by ``load`` again."""
    return yaml.dump(
        config.model_dump(mode="json"),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=120,
    )


def _read(path: Path, above: tuple[Path, ...]) -> Document:
    if path in above:
        raise ConfigError(f"{path} extends itself: " + " -> ".join(str(p) for p in (*above, path)))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        at = f" (named by `extends` in {above[-1]})" if above else ""
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ConfigError(f"config {path}{at} cannot be read: {reason}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{path}{line}: not valid YAML: {error.problem or error.context}"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: a config is a mapping of sections (model: ..., training: ...), this is a {type(values).__name__}"
        )
    origins: dict[Place, Origin] = {}
    _remember(node, (), path, origins)
    parents = values.pop("extends", None) or []
    if not isinstance(parents, str | list):
        raise ConfigError(f"{path}: extends names a file or a list of files, not {parents!r}")
    merged = Document({}, {})
    for parent in [parents] if isinstance(parents, str) else parents:
        _merge(merged, _read(_beside(path, parent), (*above, path)))
    _merge(merged, Document(values, origins))
    return merged


def _beside(path: Path, name: Any) -> Path:
    try:
        return Path(os.path.normpath(path.parent / expand_path(str(name))))
    except ValueError as error:
        raise ConfigError(f"{path}: extends: {error}") from None


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads ``1e-9`` as a string and a doubled key as its last value; this one reads a number, and refuses."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands here twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float | str:
    try:
        return float(node.value)
    except ValueError:
        return node.value


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that the loader above would read as numbers."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "!number", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
_Loader.add_constructor("!number", _number)


def _remember(
    node: yaml.Node | None, place: Place, path: Path, origins: dict[Place, Origin]
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            origins[(*place, key.value)] = Origin(
                f"{path}, line {key.start_mark.line + 1}", path.parent
            )
            _remember(value, (*place, key.value), path, origins)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            origins[(*place, i)] = Origin(f"{path}, line {value.start_mark.line + 1}", path.parent)
            _remember(value, (*place, i), path, origins)


def _merge(base: Document, top: Document) -> None:
    """Lay ``top`` over ``base``, mapping by mapping; a mapping of another ``kind`` replaces the one below it."""

    def lay(below: dict[str, Any], above: dict[str, Any]) -> None:
        for key, value in above.items():
            old = below.get(key)
            if (
                isinstance(old, dict)
                and isinstance(value, dict)
                and value.get("kind", old.get("kind")) == old.get("kind")
            ):
                lay(old, value)
            else:
                below[key] = copy.deepcopy(
                    value
                )  # or what an anchor names twice would change in both places

    lay(base.values, top.values)
    base.origins.update(top.origins)


def _override(document: Document, override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {override}: write it as section.key=value")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"--set {override}: the value is not valid YAML") from None
    place: list[str | int] = []
    here: Any = document.values
    *above, last = name.split(".")
    for part in above:
        step: str | int = int(part) if isinstance(here, list) and part.isdigit() else part
        if isinstance(here, list) and (isinstance(step, str) or step >= len(here)):
            raise ConfigError(
                f"--set {override}: {'.'.join(map(str, place))} is a list of {len(here)}; {part!r} is no place in it"
            )
        if isinstance(here, dict) and not isinstance(here.get(step), dict | list):
            here[step] = {"kind": here[step]} if isinstance(here.get(step), str) else {}
        here = here[step]
        place.append(step)
        if not isinstance(here, dict | list):
            raise ConfigError(
                f"--set {override}: {'.'.join(map(str, place))} is {here!r}, which has no {last!r}"
            )
    if isinstance(here, list):
        if not last.isdigit() or int(last) >= len(here):
            raise ConfigError(
                f"--set {override}: {'.'.join(map(str, place))} is a list of {len(here)}; {last!r} is no place in it"
            )
        here[int(last)] = value
    else:
        here[last] = value
    here_place = (*place, int(last) if isinstance(here, list) else last)
    for below in [known for known in document.origins if known[: len(here_place)] == here_place]:
        del document.origins[below]
    document.origins[here_place] = Origin(f"--set {override}", Path())


# Errors --------------------------------------------------------------------------------------------------------------

# What users of other toolkits type, and the key that they look for here, with its value where the name implies one.
ELSEWHERE = {
    # training
    "after_batches": "training.stages.0.end.updates",
    "after_epochs": "training.stages.0.end.epochs",
    "arch": "model.kind",
    "batch_size": "training.stages.0.batch.size",
    "best_checkpoint_metric": "training.validation.metric",
    "bf16": "training.precision=bf16",
    "clip_norm": "training.stages.0.clip",
    "disp_freq": "training.log_every",
    "dropout": "model.dropout",
    "early_stopping": "training.stages.0.end.patience",
    "ema_decay": "training.ema",
    "epochs": "training.stages.0.end.epochs",
    "exponential_smoothing": "training.ema",
    "fp16": "training.precision=fp16",
    "label_smoothing": "training.label_smoothing",
    "learning_rate": "training.stages.0.schedule.peak",
    "log_interval": "training.log_every",
    "lr": "training.stages.0.schedule.peak",
    "lr_warmup": "training.stages.0.schedule.warmup",
    "max_epoch": "training.stages.0.end.epochs",
    "max_epochs": "training.stages.0.end.epochs",
    "max_tokens": "training.stages.0.batch.size",
    "max_update": "training.stages.0.end.updates",
    "max_updates": "training.stages.0.end.updates",
    "mini_batch": "training.stages.0.batch.size",
    "optimizer": "training.stages.0.optimizer.kind",
    "optimizer_delay": "training.stages.0.batch.accumulate",
    "patience": "training.stages.0.end.patience",
    "save_freq": "training.save_every",
    "save_interval_updates": "training.save_every",
    "seed": "training.seed",
    "share_all_embeddings": "model.tie=all",
    "share_decoder_input_output_embed": "model.tie=target",
    "tied_embeddings": "model.tie=target",
    "tied_embeddings_all": "model.tie=all",
    "train_steps": "training.stages.0.end.updates",
    "transformer_dropout": "model.dropout",
    "update_freq": "training.stages.0.batch.accumulate",
    "valid_freq": "training.validation.every_updates",
    "valid_metrics": "training.validation.metric",
    "valid_steps": "training.validation.every_updates",
    "validate_interval": "training.validation.every_epochs",
    "validate_interval_updates": "training.validation.every_updates",
    "warmup": "training.stages.0.schedule.warmup",
    "warmup_updates": "training.stages.0.schedule.warmup",
    # data
    "destdir": "data.folder",
    "source_lang": "data.source",
    "target_lang": "data.target",
    "testpref": "data.test",
    "train_sets": "data.train",
    "trainpref": "data.train",
    "valid_sets": "data.valid",
    "validpref": "data.valid",
    # model
    "dec_depth": "model.decoder.layers",
    "decoder_layers": "model.decoder.layers",
    "dim_emb": "model.width",
    "enc_depth": "model.encoder.layers",
    "encoder_embed_dim": "model.width",
    "encoder_layers": "model.encoder.layers",
    # search
    "beam": "decoding.beam",
    "beam_size": "decoding.beam",
    "length_penalty": "decoding.normalize",
    "lenpen": "decoding.normalize",
    "max_len_a": "decoding.max_length_factor",
    "max_len_b": "decoding.max_length_extra",
    "nbest": "decoding.n_best",
}


def elsewhere(name: str) -> str | None:
    """The key here, or the key and its value, for what another toolkit calls ``name`` (as a key or an option)."""
    return ELSEWHERE.get(plain(name))


def plain(name: str) -> str:
    """An option without its dashes, as a key."""
    return name.lstrip("-").replace("-", "_")


# How the validator names its own steps and the plain members of a union, which are no keys.
_MEMBER = re.compile(r"(function-|constrained-).*|.*\[.*\]|int|float|str|bool")


def _flatten(
    kind: type[Config], errors: Sequence[Any], base: Place = ()
) -> Iterator[tuple[type[Config], Place, Any]]:
    """Each error with its full path; those inside a ``choice`` come with the config class that was chosen."""
    for error in errors:
        if error["type"] == "nested":
            yield from _flatten(
                error["ctx"]["kind"], error["ctx"]["errors"], (*base, *error["loc"])
            )
        else:
            yield kind, base, error


def _sentence(document: Document, kind: type[Config], base: Place, error: Any) -> str:
    place = tuple(
        part for part in error["loc"] if not (isinstance(part, str) and _MEMBER.fullmatch(part))
    )
    classes, shown = _walk(kind, place[:-1])
    full = (*base, *shown, *place[-1:])
    name = ".".join(str(part) for part in full) or "(the whole file)"
    if error["type"] == "extra_forbidden":
        text = "there is no such key" + _hint(
            str(place[-1]), [key for found in classes for key in found.model_fields]
        )
    elif error["type"] == "missing":
        text = "must be given"
    elif error["type"] == "union_tag_invalid":
        context = error["ctx"]
        key, *known = (
            quoted.strip("'")
            for quoted in [context["discriminator"], *context["expected_tags"].split(", ")]
        )
        near = difflib.get_close_matches(context["tag"], known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        text = f"there is no {key} {context['tag']!r}; {hint}"
    else:
        text = error["msg"].removeprefix("Value error, ")
        fields = [found.model_fields.get(str(place[-1])) for found in classes] if place else []
        may_be_null = any(field is not None and _nullable(field.annotation) for field in fields)
        if error["type"] != "choice" and isinstance(error.get("input"), str | int | float | bool):
            text += f" (it is {error['input']!r}{'; null is allowed' if may_be_null else ''})"
    where = document.where(full).text
    return f"{name}: {text}" + (f"  [{where}]" if where else "")


def _hint(key: str, known: Sequence[str]) -> str:
    if elsewhere(key):
        return f"; here it is called {elsewhere(key)}"
    near = difflib.get_close_matches(key, known, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known here: {', '.join(known)}" if known else ""


def _walk(kind: type[BaseModel], place: Place) -> tuple[list[type[BaseModel]], Place]:
    """The config classes that may stand at ``place`` below ``kind``, and the place without the names of members of unions."""
    classes, shown = [kind], []
    for part in place:
        fields = [found.model_fields[part] for found in classes if part in found.model_fields]
        if fields:
            classes = [inner for field in fields for inner in _classes(field.annotation)]
        elif not isinstance(part, int):
            chosen = [found for found in classes if found.__name__ == part or part in _tags(found)]
            if chosen:
                classes = chosen
                continue
            classes = []
        shown.append(part)
    return classes, tuple(shown)


def _classes(annotation: Any) -> list[type[BaseModel]]:
    """The config classes inside a type such as ``list[X | Y] | None``."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [inner for argument in get_args(annotation) for inner in _classes(argument)]


def _tags(kind: type[BaseModel]) -> list[Any]:
    """The values by which a union knows one of its members."""
    return [
        value
        for field in kind.model_fields.values()
        for value in get_args(field.annotation)
        if field.is_required()
    ]
