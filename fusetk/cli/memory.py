"""One sentence instead of a traceback when the memory of a device or of the host is exhausted."""

from collections.abc import Iterator
from contextlib import contextmanager

from fusetk.errors import FusetkError, first_line, out_of_memory


@contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Raise FusetkError with ``advice`` if the memory is exhausted within this context."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or out_of_memory(error)):
            raise
        raise FusetkError(f"there is not enough memory ({first_line(error)}): {advice}") from None
