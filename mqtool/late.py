"""Libraries that a start should not wait for: each is imported when something of it is first used.

``from mqtool.late import np`` is ``import numpy as np``, for modules that ``serve`` loads: a broker without messages
needs no numpy, which takes a fifth of its start. Such a module must not use it while it is imported; it makes
its arrays in functions, and its aliases of types are texts.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["LateModule", "load_late", "np", "npt"]

_late: list[str] = []


class LateModule:
    """A module that is imported when the first of its names is asked for, or by ``load_late``."""

    def __init__(self, name: str) -> None:
        """Make it for a module with this whole name."""
        self._name = name
        _late.append(name)

    def __getattr__(self, name: str) -> Any:
        """Return what the module has under a name."""
        # Kept here, where it is found without a call the next time.
        value = self.__dict__[name] = getattr(importlib.import_module(self._name), name)
        return value


def load_late() -> None:
    """Import what was put off so far, so that nobody has to wait for it later."""
    for name in _late:
        importlib.import_module(name)


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LateModule("numpy")
    npt = LateModule("numpy.typing")
