"""fusetk: layer fusion for encoder-decoder translation models, from raw text to scored translation."""

TYPE_CHECKING = False  # as typing has it, which takes longer to import than all of this
if TYPE_CHECKING:
    from fusetk.system import System as System
    from fusetk.system import load as load

__version__ = "0.1.0"
DEVICE = "auto"  # what `fusetk.load` and the commands compute on by default


def __getattr__(name: str) -> object:
    """Import the Python interface, and torch with it, when it is first used."""
    if name in ("load", "System"):
        from fusetk import system

        return getattr(system, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
