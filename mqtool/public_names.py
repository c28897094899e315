"""Public names that are loaded when they are first used; the stub beside a module states each once, with its home.

It is read as text, a line ``from home import Name as Name`` for each: to parse it as Python would take clients a tenth
of the time that they need to load.
"""

import functools
import importlib
import sys
from typing import Any


@functools.cache
def homes_of(module: str) -> dict[str, str]:
    """Return the public names of a module, in order, each with the module that defines it."""
    spec: Any = sys.modules[module].__spec__
    stub: bytes = spec.loader.get_data(
        f"{spec.origin.rpartition('.')[0]}.pyi"
    )  # it may be in a zip file, as Spark ships it
    imports = [words for words in map(str.split, stub.decode().splitlines()) if words[:1] == ["from"]]
    return dict(sorted((words[-1], words[1]) for words in imports))


def load(module: str, name: str) -> Any:
    """Return the value of a public name of a module, or its ``__all__``.

    Raises:
        AttributeError: it has no such name.
    """
    homes = homes_of(module)
    if name == "__all__":
        return [*homes]
    if name not in homes:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    if homes[name] == module:  # a module below it
        return importlib.import_module(f"{module}.{name}")
    return getattr(importlib.import_module(homes[name]), name)
