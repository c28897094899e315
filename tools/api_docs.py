"""Write docs/api.md, the public API, from the docstrings and signatures of mqtool: ``python tools/api_docs.py``.

A test checks that the page is current.
"""

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mqtool

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
_HEAD = """# The public API

Generated from docstrings by `python tools/api_docs.py`; a test checks that it is current. Anything not listed here may
change. [clients.md](clients.md) and [testing.md](testing.md) describe how the parts fit together. The clients of
`mqtool.aio` have the same names, arguments and errors as those of `mqtool`; their calls are coroutines (except for
those that do not wait), and their blocks and loops are `async with` and `async for`.
"""
_MODULES = ("mqtool", "mqtool.aio", "mqtool.opentelemetry")


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for name in _MODULES:
        parts.append(f"## {name}\n")
        parts += _module(name)
    return "\n".join(parts)


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    if name == "mqtool.aio":
        yield from (f"- `{one}`: {_first(getattr(module, one))}" for one in module.__all__)
        yield ""
        return
    names = getattr(module, "__all__", None) or ["OpenTelemetryHook"]
    for one in sorted(names, key=str.lower):
        value = getattr(module, one)
        if inspect.ismodule(value):
            continue
        yield f"### {one}\n"
        yield from _class(value) if inspect.isclass(value) else _function(value)


def _function(function: Callable[..., Any]) -> Iterator[str]:
    yield f"```python\n{function.__name__}{_signature(function)}\n```\n"
    yield _text(function)


def _class(kind: type[Any]) -> Iterator[str]:
    if issubclass(kind, enum.Enum):
        yield _text(kind)
        yield "Values: " + ", ".join(f"`{one.name}`" for one in kind) + ".\n"
        return
    bases = [base.__name__ for base in kind.__bases__ if base.__name__ in mqtool.__all__]
    of = f" A kind of {', '.join(f'`{base}`' for base in bases)}." if bases else ""
    if not issubclass(kind, BaseException) and not getattr(kind, "_is_protocol", False):
        yield f"```python\n{kind.__name__}{_signature(kind)}\n```\n"
    yield _text(kind) + _attributes_of_bases(kind) + (f"\n{of.strip()}\n" if of else "")
    if not dataclasses.is_dataclass(kind) and kind.__init__ is not object.__init__ and _has_text(kind.__init__):
        yield _text(kind.__init__)
    inherited = {name for base in kind.__mro__[1:] if base.__name__ in mqtool.__all__ for name in dir(base)}
    names = [name for name in sorted(_names_of(kind)) if name not in inherited or name in vars(kind)]
    properties = {name for name in names if isinstance(inspect.getattr_static(kind, name), property)}
    if properties:
        yield "\n".join(f"- `{name}`: {_first(getattr(kind, name))}" for name in sorted(properties)) + "\n"
    for name in names:
        if name not in properties and callable(getattr(kind, name)) and _has_text(getattr(kind, name)):
            yield f"#### {kind.__name__}.{name}\n"
            yield f"```python\n{name}{_signature(getattr(kind, name))}\n```\n"
            yield _text(getattr(kind, name))
    yield ""


def _attributes_of_bases(kind: type[Any]) -> str:
    """Return the attributes that a class has from bases that are not public, which nothing else lists."""
    hidden = [
        base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base) and base.__name__ not in mqtool.__all__
    ]
    texts = [_text(base).partition("Attributes:\n\n")[2] for base in hidden]
    return "\n".join(("", "Like all of its kind:", "", *texts)) if texts else ""


def _names_of(kind: type[Any]) -> Iterator[str]:
    ours = {name for base in kind.__mro__ if base.__module__.startswith("mqtool") for name in vars(base)}
    fields = {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    fields |= set(getattr(kind, "_fields", ()))
    return (name for name in ours if not name.startswith("_") and name not in fields)


def _signature(function: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(...)"
    taken = [
        one.replace(annotation=_unquoted(one.annotation))
        for name, one in signature.parameters.items()
        if name != "self"
    ]
    text = str(signature.replace(parameters=taken, return_annotation=_unquoted(signature.return_annotation)))
    text = re.sub(r"<function .*? at 0x\w+>|<factory>", "...", text)
    text = re.sub(r"<(\w+)\.(\w+): [^>]*>", r"\1.\2", text)
    text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(\w+)", r"\1", text)  # names without their modules
    text = re.sub(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[(\w+)\]\]", r"NDArray[\1]", text)  # as newer numpy shows it
    text = re.sub(r"\bInts\b", "NDArray[int64]", text).replace("[bool_]", "[bool]")  # annotations that are texts
    return text.removesuffix(" -> None")


class _Bare(str):
    """A text that signatures show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _unquoted(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Bare(re.sub("['\"]", "", text))


def _has_text(thing: Any) -> bool:
    return not (inspect.getdoc(thing) or "Initialize self").startswith("Initialize self")


def _text(thing: Any) -> str:
    """Return a docstring as Markdown."""
    lines = (inspect.getdoc(thing) or "").replace("``", "`").splitlines()
    found: list[str] = []
    for line in lines:
        if re.fullmatch(r"(Args|Raises|Returns|Attributes|Yields):", line):
            found += [f"{line}", ""]
        elif item := re.match(r"    (\*{0,2}[\w.]+): (.*)", line):
            found.append(f"- `{item[1]}`: {item[2]}")
        elif line.startswith("    "):
            found.append(f"  {line.strip()}")
        else:
            found.append(line)
    return "\n".join(found) + "\n"


def _first(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").replace("``", "`").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
