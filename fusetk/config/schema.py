"""Base classes of configs, and fields whose key ``kind`` chooses the config class."""

import ast
import difflib
import importlib
import inspect
import re
import sysconfig
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, PydanticSerializationError

from fusetk.config import messages
from fusetk.errors import one_line

NULL_WORDS = ("none", "None")  # accepted for null


class Config(BaseModel):
    """Base of every config class.

    Objects are immutable. Unknown keys are errors. The docstring below a field documents the field.
    """

    # `defer_build`: the validators of a class are built at its first use. Most commands use few of
    # the classes.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    aliases: ClassVar[Mapping[str, str]] = {}  # other names of keys, and the keys

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Raise TypeError if an option would replace a method or another attribute."""
        super().__pydantic_init_subclass__(**options)
        for name in cls.model_fields:
            for base in cls.__mro__[1:]:
                if name not in vars(base) or name in getattr(base, "model_fields", {}):
                    continue
                raise TypeError(
                    f"the option {name!r} of {cls.__name__} has the name of an attribute of "
                    f"{base.__name__}: rename the option"
                )

    @model_validator(mode="before")
    @classmethod
    def _correct_scalars(cls, values: Any) -> Any:
        """Replace scalars that YAML or pydantic would read as another value.

        The word none becomes null where a key may be null and does not accept the word. null
        becomes the word none where a key accepts this word. A truth value for a number becomes a
        word, also in a list or a mapping. pydantic rejects the word; it would read true as 1.
        """
        if not isinstance(values, dict):
            return values

        def corrected(key: Any, value: Any) -> Any:
            field = cls.model_fields.get(key) if isinstance(key, str) else None
            if field is None:
                return value
            if value is None or value in NULL_WORDS:
                if "none" in get_args(field.annotation):
                    return "none"
                return None if _only_null(field.annotation) else value
            types = _types(field.annotation)
            return _truths_as_words(value) if types & {int, float} and bool not in types else value

        return {key: corrected(key, value) for key, value in values.items()}


def refuse_values(config: Config, keys: Sequence[str], case: str, advice: str) -> None:
    """Raise ValueError if a key that has no effect in this case has another value than its default.

    The default is accepted, because a stored config has all keys.
    """
    for key in keys:
        if getattr(config, key) != type(config).model_fields[key].default:
            raise ValueError(f"{key} has no effect {case}: remove {key}, or {advice}")


class ComponentConfig(Config):
    """Base of the configs that a ``kind`` chooses."""

    kind: str
    """A registered name, or `package.module:Name` of a class outside fusetk."""


@cache
def field_docs(config: type[Config]) -> Mapping[str, str]:
    """Return the docstrings of the fields of a config class and of its bases.

    pydantic would read them when it defines a class (``use_attribute_docstrings``), which delays
    every command.
    """
    docs = {}
    for base in reversed(config.__mro__):
        if not issubclass(base, Config):
            continue
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in pairwise(definition.body):
            match statement, following:
                case (
                    ast.AnnAssign(target=ast.Name(name)),
                    ast.Expr(ast.Constant(str(text))),
                ):
                    docs[name] = inspect.cleandoc(text)
    return docs


def nullable(annotation: Any) -> bool:
    """Whether a key of this type may be null."""
    return type(None) in get_args(annotation)


def _truths_as_words(value: Any) -> Any:
    """Return a value with the words true and false for truth values, also in lists and mappings."""
    match value:
        case bool():
            return str(value).lower()
        case list() | tuple():
            return [_truths_as_words(item) for item in value]
        case dict():
            return {key: _truths_as_words(item) for key, item in value.items()}
    return value


def _types(annotation: Any) -> set[Any]:
    """Return the types in an annotation such as ``list[int] | None``."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return set(map(type, arguments))
    if not arguments:
        return {annotation}
    return set().union(*map(_types, arguments))


def _only_null(annotation: Any) -> bool:
    """Whether a key of this type may be null and does not accept the word none as a value."""
    members = get_args(annotation)
    accepts_word = any(
        member is str or any(word in get_args(member) for word in NULL_WORDS) for member in members
    )
    return nullable(annotation) and not accepts_word


class ComponentImportError(ValueError):
    """A component outside fusetk cannot be imported."""


def resolve(kind: str, table: Mapping[str, type], base: type = object) -> Any:
    """Return the class or function that ``kind`` names.

    ``kind`` is a key of ``table``, or ``package.module:Name`` of a subclass of ``base`` outside
    fusetk. If ``base`` is object, it may also be a function. Raises ValueError if the name is
    unknown, or if it is not a subclass of ``base`` with a suitable ``Config``, and
    ComponentImportError if it cannot be imported.
    """
    if kind in table:
        return table[kind]
    if ":" not in kind:
        is_none = kind in NULL_WORDS and "last" in table
        near = ["last"] if is_none else difflib.get_close_matches(kind.lower(), table, 1)
        if not near and "." in kind:
            near = [":".join(kind.rsplit(".", 1))]
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"unknown kind {kind!r}; {hint}known kinds: {', '.join(table)}; or package.module:Name"
        )
    component_class = imported(kind) if base is object else imported_subclass(kind, base)
    if not callable(component_class):
        raise ValueError(f"{kind!r} is neither a class nor a function")
    config = _required_config(component_class, base)
    own = getattr(component_class, "Config", None)
    if not (isinstance(own, type) and issubclass(own, config)):
        advice = ""
        if not isinstance(component_class, type):
            advice = ": decorate the function with fusetk.training.optim.configured_by"
        raise ValueError(
            f"{kind!r} must have an attribute Config that is a subclass of "
            f"{config.__module__}.{config.__name__}{advice}"
        )
    annotation: Any = own.model_fields["kind"].annotation
    if annotation is not str and kind not in get_args(annotation):
        raise ValueError(f"{kind!r}: declare `kind: str` in its class {own.__name__}")
    return component_class


def imported_subclass(kind: str, base: type) -> Any:
    """Import and return the class that ``kind``, `package.module:Name`, names.

    Raises ComponentImportError if it cannot be imported, and ValueError if it is not a subclass of
    ``base``.
    """
    imported_class = imported(kind)
    if not (isinstance(imported_class, type) and issubclass(imported_class, base)):
        raise ValueError(f"{kind!r} is not a subclass of {base.__module__}.{base.__name__}")
    return imported_class


def imported(kind: str) -> Any:
    """Import and return the object that ``kind``, `package.module:Name`, names.

    Raises ComponentImportError if it cannot be imported.
    """
    module, _, name = kind.partition(":")
    try:
        loaded = importlib.import_module(module)
        component_class = getattr(loaded, name, None)
    except (Exception, SystemExit) as error:  # an outside module may raise anything
        raise ComponentImportError(
            f"{kind!r} cannot be imported: {_import_problem(error, kind)}"
        ) from error
    if component_class is None:
        near = difflib.get_close_matches(name, vars(loaded), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        file = getattr(loaded, "__file__", None) or f"the module {module}"
        raise ComponentImportError(f"{kind!r} cannot be imported: {file} has no {name!r}{hint}")
    return component_class


def _required_config(component_class: Any, base: type) -> type[ComponentConfig]:
    """Return the class that the config of a component outside fusetk must extend.

    It is the config of its nearest ancestor in fusetk, or else that of ``base``, if they have one.
    """
    ancestors = getattr(component_class, "__mro__", ())
    own_classes = (each for each in ancestors if each.__module__.startswith("fusetk."))
    return next(
        (each.Config for each in (*own_classes, base) if hasattr(each, "Config")), ComponentConfig
    )


def _import_problem(error: BaseException, kind: str) -> str:
    """Return the error of the import of ``kind``, its place outside of libraries, and advice."""
    text = f"{type(error).__name__}: {one_line(error)}"
    module = kind.partition(":")[0]
    package = module.partition(".")[0]
    if module.endswith(".py") or "/" in module:
        name = Path(module).stem
        return f"it is a path; name the module, {name}, and set PYTHONPATH to its folder"
    if module.startswith("."):
        return "it begins with a dot; begin with the name of the package"
    if "attempted relative import with no known parent package" in text:
        return f"{text}; write PACKAGE.{kind}, and set PYTHONPATH to the folder of PACKAGE"
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"{text}; set PYTHONPATH to the folder of {package}"
    if not isinstance(error, SyntaxError):  # whose text has the place
        text += place_outside_libraries(error)
    return text


def place_outside_libraries(error: BaseException, called: bool = True) -> str:
    """Return `` (FILE, line N)`` for the innermost frame outside fusetk and installed libraries.

    The text is empty if there is none. With ``called=False`` it is also empty if this frame called
    fusetk, where the error was raised.
    """
    paths = sysconfig.get_paths()
    libraries = ("<", *(f"{paths[name]}/" for name in ("stdlib", "purelib", "platlib")))
    package = f"{Path(__file__).parents[1]}/"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(package):
            if not called:
                return ""
        elif not frame.filename.startswith(libraries) and not re.search(
            r"/(site-packages|dist-packages|torchinductor_\w+)/", frame.filename
        ):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""


def outside_error(error: BaseException) -> str:
    """Return the type, the text and the place outside of libraries of an error, in one line."""
    return f"{type(error).__name__}: {one_line(error)}{place_outside_libraries(error)}"


def outside_kinds(values: Any) -> set[str]:
    """Return the kinds ``package.module:Name`` in the plain values of a config."""
    if isinstance(values, dict | list | tuple):
        parts = values.values() if isinstance(values, dict) else values
        return set().union(*map(outside_kinds, parts))
    return {values} if isinstance(values, str) and re.fullmatch(r"[\w.]+:\w+", values) else set()


def check_storable(values: Config, name: str) -> None:
    """Raise PydanticCustomError if a config file cannot store an option of a class outside fusetk.

    A default of the class ``name`` may have a wrong type, because pydantic does not validate it.
    """
    if wrong := _option_that_cannot_be_stored(values):
        option, reason = wrong
        text = (
            f"the option {option} of {name} is wrong: it {reason}: give another value, or correct "
            f"the default in the class {type(values).__qualname__}"
        )
        raise PydanticCustomError("choice", "{error}", {"error": text})


def _option_that_cannot_be_stored(values: Config) -> tuple[str, str] | None:
    """Return an option that a config file cannot store, and the reason; None if there is none."""
    for option in type(values).model_fields:
        try:
            values.model_dump(mode="json", include={option}, warnings=False)
        except PydanticSerializationError:
            kind = type(getattr(values, option)).__name__
            return option, f"has the type {kind}, which a config file cannot store"
    try:
        type(values).model_validate(values.model_dump(mode="json", warnings=False))
    except pydantic.ValidationError as error:
        for details in error.errors():
            if details["loc"]:
                return str(details["loc"][0]), messages.reason(details)
    return None


class component:
    """Annotation of a field with the config of one class in ``table``, named by its key ``kind``.

    ``fuse: Annotated[FusionConfig, component(FUSIONS, "a fusion", Fusion)]`` accepts the ``Config``
    of each fusion. ``fuse: average`` is short for ``fuse: {kind: average}``. ``description`` names
    the component in errors. A class outside fusetk must be a subclass of ``base``; if ``base`` is
    object, it may be a function.
    """

    def __init__(self, table: Mapping[str, type], description: str, base: type = object):
        self.table = table
        self.description = description
        self.base = base

    def __get_pydantic_core_schema__(
        self, source: type, handler: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        validator = BeforeValidator(self._validate, json_schema_input_type=str | dict[str, Any])
        validated = Annotated[SerializeAsAny[source], validator]  # type: ignore[valid-type]
        return handler.generate_schema(validated)

    def _validate(self, value: Any) -> Any:
        if isinstance(value, ComponentConfig):
            return value
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            context = {"what": self.description, "known": ", ".join(self.table)}
            reason = "needs a kind: one of {known}"
            if isinstance(value, list):
                reason = "has one kind and cannot be a list: write one of {known}"
            text = f"{{what}} {reason}"
            raise PydanticCustomError("choice", text, context)
        try:
            component_class = resolve(value["kind"], self.table, self.base)
            config: type[Config] = component_class.Config
        except ValueError as error:
            context = {"error": str(error)}
            if isinstance(error, ComponentImportError):
                raise PydanticCustomError("import", "{error}", context) from error
            raise PydanticCustomError("choice", "{error}", context) from error
        is_outside = value["kind"] not in self.table
        inherits_config = is_outside and "Config" not in vars(component_class)
        unknown = value.keys() - config.model_fields.keys() if inherits_config else set()
        near = [key for key in unknown if difflib.get_close_matches(key, config.model_fields)]
        if unknown and not near:
            context = {"kind": value["kind"], "option": sorted(unknown)[0]}
            message = (
                "{kind} has no option {option}: set the attribute Config of the class to "
                "a config class that has it"
            )
            raise PydanticCustomError("choice", message, context)
        try:
            parsed = config.model_validate(value)
        except pydantic.ValidationError as error:  # `parse` combines the paths of nested errors
            details = {"errors": error.errors(), "kind": config}
            raise PydanticCustomError("nested", "invalid", details) from None
        if is_outside:
            check_storable(parsed, value["kind"])
        return parsed
