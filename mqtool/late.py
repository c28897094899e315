"""Libraries that a start should not wait for: each is imported when something of it is first used.

``from mqtool.late import np`` is ``import numpy as np``, for modules that ``serve`` loads: a broker without messages
needs no numpy, which takes a fifth of its start. Such a module must not use it while it is imported; it makes
its arrays in functions, and its aliases of types are texts.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["np", "npt"]

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:

    class _LateModule:
        """A module that is imported when the first of its names is asked for."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            # Kept here, where it is found without a call the next time.
            value = self.__dict__[name] = getattr(importlib.import_module(self._name), name)
            return value

    np = _LateModule("numpy")
    npt = _LateModule("numpy.typing")
