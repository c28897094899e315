"""List every string that a user may see, by module: ``python -m tools.strings [MODULE ..]``.

Lists strings that contain a space or are passed to a function that prints, help texts of commands, and docstrings
of the public API. Each has its line and its kind: help, error, finding, check, remark, API, or other, if the kind is
unknown. ``{..}`` stands for a value that is filled in. Cost: linear in the source.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("mqtool", "pyspark_rocketmq", "pyspark_rocketmq_store")
_HELP = {"help", "short_help", "epilog", "metavar"}
_REMARKS = {
    "remark",
    "text",
    "line",
    "tell",
    "echo",
    "confirm",
    "show",
    "warning",
    "info",
    "error",
    "exception",
    "complain",
}
_FINDINGS = {"finding", "rows", "Finding", "damage", "lost"}
_COMMANDS = {"command", "group"}
_PUBLIC = ("mqtool.aio", "mqtool.engine.client_runtime", "mqtool.engine.embedded", "mqtool.engine.client")


class Shown(NamedTuple):
    """A string, where it stands, and what it is."""

    module: str
    line: int
    kind: str
    text: str


def strings(module: str, source: str) -> Iterator[Shown]:
    """Yield the strings of a module, in the order of its lines."""
    yield from sorted({*_walk(module, ast.parse(source), "other")}, key=lambda one: (one.line, one.text))


def modules() -> dict[str, str]:
    """Return the text of every module that is installed, by its name."""
    files = [path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in files}


def _walk(module: str, node: ast.AST, kind: str) -> Iterator[Shown]:
    """Yield the strings below a node; ``kind`` is what they are if nothing nearer tells."""
    match node:
        case ast.Constant(value=str(text)):
            if " " in text.strip() or (kind in ("help", "remark", "finding") and text.strip()):
                yield Shown(module, node.lineno, kind, text)
            return
        case ast.JoinedStr():
            text = _joined(node)
            if " " in text.strip():
                yield Shown(module, node.lineno, kind, text)
            for value in node.values:
                if isinstance(value, ast.FormattedValue):
                    yield from _walk(module, value.value, kind)
            return
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _walk(module, left, kind)
            yield from _walk(module, right, kind)
            return
        case ast.Raise():
            kind = "error"
        case ast.Call(func=func):
            kind = _kind_of_call(_name(func), kind)
        case ast.keyword(arg=str(name)) if name in _HELP:
            kind = "help"
        case (
            ast.Assign(targets=[ast.Name(id="CHECKS" | "PAGES"), *_])
            | ast.AnnAssign(target=ast.Name(id="CHECKS" | "PAGES"))
        ):
            kind = "check"
        case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _of_definition(module, node)
            return
    for child in ast.iter_child_nodes(node):
        yield from _walk(module, child, kind)


def _of_definition(
    module: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[Shown]:
    body = node.body
    docstring = ast.get_docstring(node)
    if docstring is not None:
        is_help = not isinstance(node, ast.Module | ast.ClassDef) and any(
            _name(one.func if isinstance(one, ast.Call) else one) in _COMMANDS for one in node.decorator_list
        )
        is_public = not isinstance(node, ast.Module) and not node.name.startswith("_") and module.startswith(_PUBLIC)
        if is_help or is_public:
            yield Shown(module, body[0].lineno, "help" if is_help else "API", docstring)
        body = body[1:]
    for child in body:
        if not (
            isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        ):  # a comment in the form of a string
            yield from _walk(module, child, "other")
    if not isinstance(node, ast.Module):
        for decorator in node.decorator_list:
            yield from _walk(module, decorator, "other")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for default in (*node.args.defaults, *(one for one in node.args.kw_defaults if one)):
            yield from _walk(module, default, "other")


def _kind_of_call(name: str, kind: str) -> str:
    if kind in ("error", "check"):
        return kind
    if name in _FINDINGS:
        return "finding"
    return "remark" if name in _REMARKS else "help" if name in ("CommandEntry", "DumpKind") else kind


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _joined(node: ast.JoinedStr) -> str:
    parts = [one.value if isinstance(one, ast.Constant) else "{..}" for one in node.values]
    return "".join(str(part) for part in parts)


def main(wanted: list[str]) -> None:
    """Print the strings, a line each, of all modules or those whose names begin with one that is wanted."""
    counts: dict[str, int] = {}
    for module, source in modules().items():
        if wanted and not module.startswith(tuple(wanted)):
            continue
        for shown in strings(module, source):
            counts[shown.kind] = counts.get(shown.kind, 0) + 1
            print(f"{shown.module}:{shown.line}\t{shown.kind}\t{' '.join(shown.text.split())}")  # noqa: T201
    print(*(f"{count} {kind}" for kind, count in sorted(counts.items())), sep=", ", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
