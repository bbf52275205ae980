"""Layer fusion for encoder-decoder translation models, from raw text to scored translation."""

TYPE_CHECKING = False  # like typing.TYPE_CHECKING; importing typing would take too long
if TYPE_CHECKING:
    from fusetk.system import System as System
    from fusetk.system import load as load

__version__ = "0.1.0"
DEVICE = "auto"  # the default device of `fusetk.load` and the commands
PRECISIONS = ("fp32", "bf16", "int8")  # of loaded weights; the first is the default


def __getattr__(name: str) -> object:
    """Import the Python interface, and with it torch, at the first use."""
    if name in ("load", "System"):
        from fusetk import system

        return getattr(system, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
