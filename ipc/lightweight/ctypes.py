"""One call into the C library without `ctypes`, or with it where its C module differs.

Never calls anything but functions that take and return integers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def call(function: str, *arguments: int) -> int:
    """What a function of the C library returns. Raises OSError where there is no such function."""
    try:
        address, run = _by_the_core(function)
    except Exception:  # the core is missing, is another one, or does not find the function
        return _by_ctypes(function, *arguments)
    return run(address, arguments)


def _by_the_core(function: str) -> tuple[int, Callable[[int, tuple[int, ...]], int]]:
    import _ctypes  # here: most processes never call

    program: str = None  # type: ignore[assignment]  # the C library is part of the program
    return _ctypes.dlsym(_ctypes.dlopen(program, 0), function), _ctypes.call_function


def _by_ctypes(function: str, *arguments: int) -> int:
    try:
        import ctypes  # here: only where the core does not do

        result: int = getattr(ctypes.CDLL(None), function)(*arguments)
    except (ImportError, AttributeError) as error:
        raise OSError(f"the C library has no {function} that Python can call") from error
    return result
