"""YAML files to validated, immutable config objects.

``load`` reads a file, the files that it ``extends`` and overrides of the form ``a.b=c``. ``parse``
validates the result and reports every error at once, with the place where each wrong key was
written.

This package knows no section of a config: ``fusetk.recipe`` defines the sections, and each config
class is defined beside the class that it configures.
"""

from fusetk.config.foreign_keys import FOREIGN_KEYS, fusetk_key, option_as_key, value_advice
from fusetk.config.schema import (
    ComponentConfig,
    ComponentImportError,
    Config,
    check_storable,
    component,
    field_docs,
    imported,
    imported_subclass,
    outside_error,
    outside_kinds,
    place_outside_libraries,
    refuse_values,
    resolve,
)
from fusetk.config.source import (
    Aliases,
    Alternatives,
    Document,
    Origin,
    Place,
    dump,
    expand_path,
    load,
)
from fusetk.config.validation import config_error, parse

__all__ = [
    "FOREIGN_KEYS",
    "Aliases",
    "Alternatives",
    "ComponentConfig",
    "ComponentImportError",
    "Config",
    "Document",
    "Origin",
    "Place",
    "check_storable",
    "component",
    "config_error",
    "dump",
    "expand_path",
    "field_docs",
    "fusetk_key",
    "imported",
    "imported_subclass",
    "load",
    "option_as_key",
    "outside_error",
    "outside_kinds",
    "parse",
    "place_outside_libraries",
    "refuse_values",
    "resolve",
    "value_advice",
]
