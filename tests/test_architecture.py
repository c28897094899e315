"""The rooms of mqtool and their doors: which module may import what, read from the source.

A new module belongs to one of the rooms below, or gets a row of its own here.
"""

import ast
import functools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.store.file_kinds import KINDS
from mqtool.formats import topics
from mqtool.formats.property_names import OF_ROCKETMQ

ROOT = Path(__file__).parent.parent
OURS = ("mqtool", "pyspark_rocketmq", "pyspark_rocketmq_store", "spark_jobs")


@dataclass(frozen=True)
class RoomRow:
    """What the modules of one room may import of ours; their own room, ``mqtool.errors`` and ``mqtool.late`` always."""

    allowed: tuple[str, ...] = ()
    when_called: tuple[str, ...] = ()  # only inside a function, or for the type checker


REPAIR = ROOT / "mqtool" / "engine" / "repair"


def _repair(*packages: str) -> RoomRow:
    """Return what a package of ``engine.repair`` may import: what lies beside the packages, and some of these."""
    beside = [path.stem for path in sorted(REPAIR.glob("*.py"))]
    return RoomRow(
        ("mqtool.engine.store", "mqtool.formats", *(f"mqtool.engine.repair.{name}" for name in [*beside, *packages]))
    )


# A module belongs to the longest name that it starts with. A name stands for all that lies below it.
ROOMS = {
    "mqtool.__init__": RoomRow(when_called=("mqtool.public_names",)),  # loaded on first use
    "mqtool.aio": RoomRow(("mqtool.public_names",)),
    "mqtool.public_names": RoomRow(),
    "mqtool.opentelemetry": RoomRow(("mqtool.engine",)),
    "mqtool.__main__": RoomRow(("mqtool.cli",)),
    "mqtool.processes": RoomRow(),
    "mqtool.cli": RoomRow(
        ("mqtool.processes",), when_called=("mqtool.commands",)
    ),  # a command's module loads when it is called
    "mqtool.errors": RoomRow(),
    "mqtool.late": RoomRow(),
    "mqtool.formats": RoomRow(),
    "mqtool.engine.__init__": RoomRow(),
    "mqtool.engine.intervals": RoomRow(),
    "mqtool.engine.store": RoomRow(("mqtool.engine.intervals", "mqtool.formats")),
    "mqtool.engine.repair": _repair("rebuild.config"),
    "mqtool.engine.repair.verify": _repair("rebuild"),
    "mqtool.engine.repair.rebuild": _repair("verify"),
    "mqtool.engine.repair.recover": _repair("verify", "rebuild", "java_recovery"),
    "mqtool.engine.repair.java_recovery": _repair("verify", "rebuild"),
    "mqtool.engine.repair.compare": _repair(),
    "mqtool.engine.repair.salvage": _repair("verify", "rebuild", "recover", "compare"),
    "mqtool.engine.repair.doctor": _repair("verify", "recover", "rebuild", "java_recovery"),
    "mqtool.engine.broker": RoomRow(
        ("mqtool.engine.intervals", "mqtool.engine.repair", "mqtool.engine.store", "mqtool.formats"),
        when_called=("mqtool.engine.replication",),
    ),
    "mqtool.engine.replication": RoomRow(("mqtool.engine.store", "mqtool.formats")),
    "mqtool.engine.name_server": RoomRow(("mqtool.engine.intervals", "mqtool.formats")),
    "mqtool.engine.client": RoomRow(("mqtool.formats",)),
    "mqtool.engine.remoting": RoomRow(("mqtool.engine.streams", "mqtool.formats")),
    "mqtool.engine.streams": RoomRow(("mqtool.formats.peer",)),  # it knows no protocol
    "mqtool.engine.virtual_clock": RoomRow(("mqtool.engine.remoting",)),
    "mqtool.engine.embedded": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.doors": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.server_configs": RoomRow(("mqtool.engine",)),
    "mqtool.engine.role_keeper": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.pulsar": RoomRow(
        ("mqtool.engine.broker", "mqtool.engine.intervals", "mqtool.engine.store", "mqtool.formats")
    ),
    "mqtool.engine.pulsar_server": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.replication_server": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.registrar": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.slave": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.other_log": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.missing_tail": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.recovering": RoomRow(("mqtool.processes",)),
    "mqtool.engine.http_server": RoomRow(("mqtool.engine.streams",)),
    "mqtool.engine.pulsar_admin": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.metrics": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.engine.cluster": RoomRow(("mqtool.engine", "mqtool.formats", "mqtool.processes")),
    "mqtool.engine.client_runtime": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.commands": RoomRow(("mqtool.engine", "mqtool.formats")),
    "mqtool.commands._spark": RoomRow(("mqtool.commands",), when_called=("mqtool.engine", "mqtool.spark")),
    "mqtool.commands.spark": RoomRow(
        ("mqtool.commands", "mqtool.engine", "mqtool.formats"), when_called=("mqtool.spark",)
    ),
    "mqtool.spark.__init__": RoomRow(when_called=("mqtool.cli",)),
    "mqtool.spark": RoomRow(("mqtool.engine.repair", "mqtool.engine.store", "mqtool.formats")),
    **dict.fromkeys(  # running brokers, by our own client
        (
            "mqtool.spark.queues",
            "mqtool.spark.queue_reader",
            "mqtool.spark.brokers",
            "mqtool.spark.broker_stream",
            "mqtool.spark.sender",
        ),
        RoomRow(
            (
                "mqtool.engine.client",
                "mqtool.engine.client_runtime",
                "mqtool.engine.store",
                "mqtool.formats",
                "mqtool.spark",
            )
        ),
    ),
    "pyspark_rocketmq": RoomRow(("mqtool.spark",)),  # Spark's doors to the sources
    "pyspark_rocketmq_store": RoomRow(("mqtool.spark",)),
    "spark_jobs": RoomRow(("mqtool.spark",)),  # for spark-submit
}

# Libraries that are slow to load or not always installed, and where they may be imported.
LIBRARIES = {
    "construct": RoomRow(("mqtool.formats",)),
    "numba": RoomRow(("mqtool.formats.compiled", "mqtool.formats.clmul")),
    "llvmlite": RoomRow(
        ("mqtool.formats.compiled", "mqtool.formats.clmul", "mqtool.formats.native", "mqtool.formats.kernel_cache")
    ),
    "opentelemetry": RoomRow(("mqtool.opentelemetry",)),
    "prometheus_client": RoomRow(("mqtool.engine.metrics", "mqtool.engine.client_runtime.client_metrics")),
    "lark": RoomRow(("*.sql92",), when_called=OURS),
    "pyarrow": RoomRow(("mqtool.spark",), when_called=OURS),
    # stores.py, partitions.py and tables.py do without
    "pyspark": RoomRow(("mqtool.spark", "pyspark_rocketmq", "pyspark_rocketmq_store")),
    "rocksdict": RoomRow(when_called=OURS),
    "fsspec": RoomRow(when_called=("mqtool.engine.store.remote",)),
    "hdfs_native": RoomRow(when_called=("mqtool.engine.store.remote",)),
    "google": RoomRow(("mqtool.engine.pulsar.wire_classes",)),
    "jwt": RoomRow(when_called=("mqtool.engine.pulsar.tokens",)),
    "starlette": RoomRow(("mqtool.engine.metrics", "mqtool.engine.pulsar_admin")),
    "uvicorn": RoomRow(("mqtool.engine.http_server",)),
    "crc32c": RoomRow(("mqtool.engine.pulsar.frames",)),
    "cramjam": RoomRow(when_called=("mqtool.engine.pulsar.compression",)),
    "yaml": RoomRow(when_called=("mqtool.formats.plain_acl",)),
}
# A module that imports one of these when it is itself imported must be imported inside functions.
SLOW = ("numba", "llvmlite", "lark")

_SOCKETS = ("socket", "socketserver", "selectors", "ssl", "asyncio")
_FILES = ("os", "pathlib", "io.open", "io.FileIO", "mmap", "tempfile", "shutil", "glob", "fileinput", "rocksdict")
_CLOCK = ("time", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today")

# What a room does without, so that its tests need no disk, no network and no waiting.
OUTSIDE = {
    "mqtool.formats": (*_FILES, *_SOCKETS, *_CLOCK, "subprocess", "open"),
    # They keep machine code in the user's cache, and ask for what processor it is.
    **dict.fromkeys(("mqtool.formats.kernel_cache", "mqtool.formats.native"), (*_SOCKETS, *_CLOCK, "subprocess")),
    "mqtool.engine.broker": (*_SOCKETS, *_CLOCK),
    "mqtool.engine.name_server": (*_SOCKETS, *_CLOCK),
    "mqtool.engine.client": (*_SOCKETS, *_CLOCK),
    "mqtool.engine.replication": (*_SOCKETS, *_CLOCK),
    "mqtool.engine.pulsar": (*_SOCKETS, *_CLOCK),
    "mqtool.engine.remoting": (*_SOCKETS, *_CLOCK),
    "mqtool.engine.remoting.clock": _SOCKETS,
    "mqtool.engine.remoting.client": (),
    "mqtool.engine.streams": (*_SOCKETS, *_CLOCK),
    "mqtool.engine.streams.tls": ("socket", "asyncio", *_CLOCK),
    "mqtool.engine.streams.server": (),
    "mqtool.engine.streams.ports": (),
}

ENDS_THE_PROGRAM = "mqtool.cli"


@dataclass(frozen=True)
class Import:
    """One imported name, in full: ``from a import b`` is ``a.b``."""

    target: str
    line: int
    when_called: bool


@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def violations(module: str, source: str) -> list[str]:
    """Return a sentence for each line of a module that breaks a rule of this page.

    A package goes by the name of its file: ``mqtool.formats.__init__``.
    """
    tree = _parsed(source)
    imports = imports_of(module, source)
    found = [
        *_wrong_doors(module, imports),
        *_wrong_libraries(module, imports),
        *_outside(module, tree, imports),
        *_exits(module, tree),
    ]
    return [f"{module}:{line}: {sentence}" for line, sentence in sorted(found)]


@functools.cache
def imports_of(module: str, source: str) -> tuple[Import, ...]:
    """Return every import, those inside functions and below ``if TYPE_CHECKING`` included."""
    return tuple(_imports(_parsed(source), module.split("."), when_called=False))


def _imports(node: ast.AST, home: list[str], when_called: bool) -> Iterator[Import]:
    later: list[ast.AST] = []  # what does not run when the module is imported
    match node:
        case ast.Import(names=names):
            for name in names:
                yield Import(name.name, node.lineno, when_called)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = ".".join([*(home[:-level] if level else []), *([module] if module else [])])
            for name in names:
                yield Import(base if name.name == "*" else f"{base}.{name.name}", node.lineno, when_called)
        case ast.Call(func=func, args=[ast.Constant(value=str(target)), *_]):
            if _dotted(func).endswith(("import_module", "__import__")):
                yield Import(target, node.lineno, when_called)
        case ast.If(test=test, body=body) if _dotted(test).endswith("TYPE_CHECKING"):
            later = [*body]
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            later = [*body]
        case ast.Lambda(body=value):
            later = [value]
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, home, when_called or child in later)


def _wrong_doors(module: str, imports: Iterable[Import]) -> Iterator[tuple[int, str]]:
    home = _longest(module, ROOMS)
    if home is None:
        yield 1, "belongs to no room of the table in tests/test_architecture.py"
        return
    row = ROOMS[home]
    for found in imports:
        if not _below(found.target, OURS) or _below(found.target, ("mqtool.errors", "mqtool.late")):
            continue
        if _longest(found.target, ROOMS) == home or _below(found.target, row.allowed):
            continue
        if not _below(found.target, row.when_called):
            yield found.line, f"{home} may not import {found.target}"
        elif not found.when_called:
            yield found.line, f"{home} may import {found.target} only inside a function"


def _wrong_libraries(module: str, imports: Iterable[Import]) -> Iterator[tuple[int, str]]:
    for found in imports:
        library = found.target.partition(".")[0]
        row = LIBRARIES.get(library)
        if row is None or _below(module, row.allowed):
            continue
        if not _below(module, row.when_called):
            yield found.line, f"{library} may not be imported here"
        elif not found.when_called:
            yield found.line, f"{library} may be imported only inside a function"


def _outside(module: str, tree: ast.Module, imports: Iterable[Import]) -> Iterator[tuple[int, str]]:
    room = _longest(module, OUTSIDE)
    if room is None:
        return
    for line, name in [*((found.line, found.target) for found in imports), *_calls(tree)]:
        if _below(name, OUTSIDE[room]):
            yield line, f"{room} does without {name}"


def _exits(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if module == ENDS_THE_PROGRAM:
        return
    sentence = f"only {ENDS_THE_PROGRAM} ends the program"
    for line, name in _calls(tree):
        if name in ("sys.exit", "exit", "quit"):
            yield line, sentence
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if _dotted(raised) == "SystemExit":
                yield node.lineno, sentence


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what is called, by its full name where it was imported: ``dt.now()`` is ``datetime.datetime.now``."""
    full: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            full |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = _dotted(node.func).partition(".")
            yield node.lineno, full.get(first, first) + dot + rest


def _dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
    return "?"


def _below(name: str, tops: Iterable[str]) -> bool:
    return any(name == top or name.startswith(f"{top}.") or fnmatchcase(name, top) for top in tops)


def _longest(name: str, tops: Iterable[str]) -> str | None:
    return max((top for top in tops if _below(name, [top])), key=len, default=None)


def sources(tops: Iterable[str] = OURS) -> dict[str, str]:
    """Return the text of every module below some folders, ours if none are named, by its name."""
    files = [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in files}


def slow_imports(sources: dict[str, str]) -> list[str]:
    """Return a sentence for each import, outside functions, of a module that itself loads a slow library.

    Modules that load one may import each other.
    """
    eager = {
        name: [found for found in imports_of(name, source) if not found.when_called] for name, source in sources.items()
    }
    slow = {name for name, imports in eager.items() if any(_below(found.target, SLOW) for found in imports)}
    packages = {name.removesuffix(".__init__") for name in slow}
    return [
        f"{name}:{found.line}: {found.target} loads a slow library: import it inside a function"
        for name, imports in eager.items()
        for found in imports
        if name not in slow and _below(found.target, packages)
    ]


def test_every_module_keeps_to_the_rules() -> None:
    found = [sentence for name, source in sources().items() for sentence in violations(name, source)]

    assert not found, "\n".join(found)


def test_slow_libraries_are_loaded_by_functions() -> None:
    found = slow_imports(sources())

    assert not found, "\n".join(found)


def circles(sources: dict[str, str]) -> list[list[str]]:
    """Return the modules that lead back to themselves by imports, those inside functions and for the type checker too.

    Modules that lead to each other are one list.
    """
    names = {name.removesuffix(".__init__"): name for name in sources}

    def module_of(target: str) -> str | None:
        while target and target not in names:
            target = target.rpartition(".")[0]
        return names.get(target)

    leads = {
        name: {known for found in imports_of(name, source) if (known := module_of(found.target)) not in (None, name)}
        for name, source in sources.items()
    }
    reached: dict[str, set[str]] = {}
    for name in sources:
        reached[name], left = set(), [*leads[name]]
        while left:
            one = left.pop()
            if one not in reached[name]:
                reached[name].add(one)
                left += leads[one]
    found = {
        frozenset(one for one in reached[name] if name in reached[one]) for name in sources if name in reached[name]
    }
    return sorted(sorted(circle) for circle in found)


SERVERS = ("mqtool.engine.broker", "mqtool.engine.name_server")

MAX_FILES = 15
"""How many modules a folder of ``engine.repair`` holds at most: what is more is a package of its own."""


def test_modules_import_each_other_one_way() -> None:
    assert circles(sources()) == []


BESIDE = (*OURS, "tools", "bench", "tests")
"""Where a class name stands for one thing."""
PROGRAMS = ("tests.interop",)
"""Whose modules are programs of their own, in which other projects' names mean what they mean there."""
BLOCKING = "mqtool.engine.client_runtime.blocking."


def twice(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the class names that several modules define, and where; a client's two forms count as one."""
    places: dict[str, list[str]] = {}
    for module, source in sources.items():
        for node in ast.walk(_parsed(source)):
            if isinstance(node, ast.ClassDef) and not (module.startswith(BLOCKING) and node.name in mqtool.aio.__all__):
                places.setdefault(node.name, []).append(f"{module}:{node.lineno}")
    return {name: at for name, at in places.items() if len(at) > 1}


def test_no_class_name_stands_for_two_things() -> None:
    found = twice({name: source for name, source in sources(BESIDE).items() if not _below(name, PROGRAMS)})

    assert not found, "\n".join(f"{name}: {', '.join(at)}" for name, at in found.items())


def test_a_class_name_that_stands_for_two_things_is_seen() -> None:
    assert twice({"p.a": "class Rows: ...", "p.b": "def f():\n    class Rows: ..."}) == {"Rows": ["p.a:1", "p.b:2"]}
    assert twice({"p.a": "class Rows: ...\nclass Rows: ..."})

    producers = {"p.producer": "class Producer: ...", f"{BLOCKING}producers": "class Producer: ..."}
    assert twice(producers) == {}
    assert twice(producers | {"p.pulsar": "class Producer: ..."})


VAGUE = ("one", "some", "given", "found")  # whatever they hold, they do not say it


def vague_names(module: str, source: str) -> list[str]:
    """Return where variables and parameters have names that do not say what they hold; fields of classes may."""
    tree = _parsed(source)
    fields = {
        id(target)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for statement in owner.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
    }
    return [f"{module}:{line}: {name}" for name, line in _bindings(tree, fields) if name in VAGUE]


def _bindings(tree: ast.Module, fields: Collection[int]) -> Iterator[tuple[str | None, int]]:
    """Yield name and line of each variable and parameter."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in fields:
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                yield name, node.lineno
            case ast.MatchMapping(rest=name):
                yield name, node.lineno


def test_names_of_variables_and_parameters_say_what_they_hold() -> None:
    modules = sources(("mqtool",)).items()

    assert not [place for module, source in modules for place in vague_names(module, source)]


@pytest.mark.parametrize(
    "source",
    [
        "some = 1",
        "def f(given): ...",
        "def f(*, found=None): ...",
        "f = lambda one: one",
        "[1 for one in range(2)]",
        "for one, two in (): ...",
        "with open('x') as found: ...",
        "try: ...\nexcept OSError as found: ...",
        "if (found := 1): ...",
        "match 1:\n    case [some, *given]: ...",
    ],
)
def test_a_name_that_does_not_say_what_it_holds_is_seen(source: str) -> None:
    assert vague_names("mqtool.stray", source)


def test_a_field_of_a_class_and_a_name_of_another_may_be_vague() -> None:
    assert (
        vague_names("mqtool.stray", "class A:\n    found: int\n    given = 1\nprint(A.found, f(found=1), some)") == []
    )


def test_no_folder_of_repair_holds_more_modules_than_a_stranger_reads_at_a_glance() -> None:
    folders = [REPAIR, *(path.parent for path in REPAIR.rglob("__init__.py"))]

    assert {str(path): count for path in folders if (count := len([*path.glob("*.py")])) > MAX_FILES} == {}


WITHOUT_A_WALK = {"doctor.pages", "doctor.surroundings"}
"""Modules of the packages of repair that neither plan nor walk: texts, and the state of the machine."""


def test_modules_of_repair_that_plan_or_walk_state_their_cost() -> None:
    modules = {f"{path.parent.name}.{path.stem}": path for path in REPAIR.glob("*/*.py") if path.stem != "__init__"}

    assert {name for name, path in modules.items() if "Cost: " not in path.read_text()} == WITHOUT_A_WALK


NAMES = ("mqtool.formats.property_names", "mqtool.formats.topics")
"""Where the names of properties, and of topics and groups of a broker, are constants."""


def literal_names(sources: dict[str, str]) -> list[str]:
    """Return each place where a module writes such a name itself; docstrings and placeholders of a help page may."""
    texts = OF_ROCKETMQ | {text for name, text in vars(topics).items() if name[0].isupper() and isinstance(text, str)}
    return [
        f"{module}:{line}: {text}"
        for module, source in sources.items()
        if module not in NAMES
        for line, text in _literals(_parsed(source))
        if text in texts
    ]


def _literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.keyword(arg="metavar"):
            return
        case ast.Constant(value=str(text), lineno=line):
            yield line, text
        case ast.Constant(value=bytes(data), lineno=line):
            yield line, data.decode("latin-1")
    for child in ast.iter_child_nodes(node):
        yield from _literals(child)


def test_names_of_properties_and_system_topics_are_constants_of_one_module_each() -> None:
    assert literal_names(sources(["mqtool", "spark_jobs"])) == []


def test_a_literal_name_is_seen() -> None:
    assert literal_names({"p.a": "def f():\n    return f\"{pairs['UNIQ_KEY']} {x}\""}) == ["p.a:2: UNIQ_KEY"]
    assert literal_names({"p.a": 'X = b"KEYS"', "p.b": 'X = topic.startswith("%RETRY%")'})

    assert literal_names({"p.a": '"""KEYS"""\noption(metavar="TAGS")\nX = "the TAGS property"'}) == []


def literal_places(sources: dict[str, str]) -> list[str]:
    """Return each place where a module builds the path of a kind of store file from a name of its own."""
    return [
        f"{module}:{node.lineno}: {node.right.value}"
        for module, source in sources.items()
        for node in ast.walk(_parsed(source))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)
        if node.right.value in {kind.name for kind in KINDS}
    ]


def test_paths_of_store_files_are_made_from_the_table_of_their_kinds() -> None:
    assert literal_places(sources(["mqtool"])) == []
    assert literal_places({"p.a": 'path = root / "index" / name', "p.b": 'part = "index"'}) == ["p.a:1: index"]


DOORS = (
    "mqtool.engine.broker.processors",
    "mqtool.engine.broker.remoting_door",
    "mqtool.engine.name_server.remoting_door",
)
"""The modules of a broker, or a name server, that know the remoting protocol."""
OPERATIONS = "mqtool.engine.broker.operations"
WIRE = (
    "mqtool.formats.headers",
    "mqtool.formats.remoting",
    "mqtool.formats.signing",
    "mqtool.formats.codes.RequestCode",
    "mqtool.formats.codes.ResponseCode",
    *DOORS,
)
PLAIN_OF_STORE = ("append_result", "pull", "time_search")
"""The modules of the store from which a processor may have a value that an operation takes or returns."""


def wrong_of_servers(module: str, source: str) -> list[str]:
    """Return what a module of a broker or a name server imports against the rules of doors, operations and parts."""
    found = imports_of(module, source)
    if _below(module, DOORS):
        plain = [f"mqtool.engine.store.{name}" for name in PLAIN_OF_STORE]
        wrong = [one for one in found if _below(one.target, ["mqtool.engine.store"]) and not _below(one.target, plain)]
    else:
        whole = ["mqtool.engine.broker.broker"] if _below(module, [OPERATIONS]) else []
        wrong = [one for one in found if _below(one.target, (*WIRE, *whole))]
    return [f"{module}:{one.line}: {one.target}" for one in wrong]


def test_only_the_doors_of_a_server_know_a_wire_and_operations_know_no_broker() -> None:
    ours = {name: source for name, source in sources().items() if _below(name, SERVERS)}
    found = [sentence for name, source in ours.items() for sentence in wrong_of_servers(name, source)]

    assert not found, "\n".join(found)
    assert any(_below(name, [OPERATIONS]) for name in ours)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("broker.operations.pull", "from mqtool.formats.remoting import RemotingCommand"),
        ("broker.operations.pull", "from mqtool.formats.headers import Pull"),
        ("broker.operations.pull", "from mqtool.formats.codes import Perm, ResponseCode"),
        ("broker.operations.pull", "from mqtool.engine.broker.processors.refusals import CODES"),
        ("broker.operations.pull", "from mqtool.engine.broker import remoting_door"),
        ("broker.operations.pull", "def f():\n    from mqtool.engine.broker.broker import Broker"),
        ("broker.pops", "from mqtool.formats.headers import Pop"),
        ("broker.metrics", "from mqtool.engine.broker.processors.admin import runtime_info"),
        ("broker.processors.query", "from mqtool.engine.store.live_log import LiveLog"),
        ("name_server.name_server", "from mqtool.formats.headers import RegisterBroker"),
        ("name_server.kv_configs", "from mqtool.engine.name_server.remoting_door import PROCESSORS"),
    ],
)
def test_what_servers_may_not_import_is_seen(module: str, source: str) -> None:
    assert wrong_of_servers(f"mqtool.engine.{module}", source)


def test_a_circle_of_imports_is_seen() -> None:
    rooms = {
        "p.a": "from p.b import x",
        "p.b": "def f():\n    import p.c",
        "p.c": "from p import b",
        "p.d": "import p.a",
    }
    assert circles(rooms) == [["p.b", "p.c"]]

    assert circles(rooms | {"p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x"}) == [
        ["p.a", "p.b", "p.c"]
    ]
    assert circles(rooms | {"p.c": ""}) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mqtool.formats.scan", "import mqtool.engine.store.reader"),
        ("mqtool.formats.scan", "from mqtool.engine import store"),
        ("mqtool.formats.scan", "def f():\n    from mqtool.engine.store import reader"),
        ("mqtool.formats.scan", "from ..engine.store import reader"),
        ("mqtool.formats.scan", "from .. import commands"),
        ("mqtool.formats.scan", "import mqtool"),
        ("mqtool.formats.scan", "import os.path"),
        ("mqtool.formats.scan", "from time import monotonic"),
        ("mqtool.formats.scan", "from pathlib import Path"),
        ("mqtool.formats.scan", "from io import open"),
        ("mqtool.formats.scan", "import io\nio.open('x')"),
        ("mqtool.formats.scan", "open('x')"),
        ("mqtool.formats.scan", "import socket"),
        ("mqtool.formats.scan", "import mmap"),
        ("mqtool.formats.scan", "import datetime as dt\nnow = dt.datetime.now()"),
        ("mqtool.formats.scan", "from datetime import datetime\ndef f():\n    return datetime.now(None)"),
        ("mqtool.formats.scan", "def f():\n    import numba"),
        ("mqtool.formats.scan", "def f():\n    import rocksdict"),
        ("mqtool.engine.store.reader", "from mqtool.engine.repair import findings"),
        (
            "mqtool.engine.store.reader",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mqtool.commands",
        ),
        ("mqtool.engine.store.reader", "from ..repair.verify import verify_store"),
        ("mqtool.engine.store.reader", "import importlib\nimportlib.import_module('mqtool.engine.repair')"),
        ("mqtool.engine.store.reader", "from construct import Struct"),
        ("mqtool.engine.store.reader", "import rocksdict"),
        ("mqtool.engine.store.reader", "try:\n    import rocksdict\nexcept ImportError:\n    pass"),
        ("mqtool.engine.store.reader", "class A:\n    import lark"),
        ("mqtool.engine.store.reader", "import sys\nsys.exit(1)"),
        ("mqtool.engine.store.reader", "from sys import exit as leave\nleave(1)"),
        ("mqtool.engine.store.reader", "raise SystemExit"),
        ("mqtool.engine.store.reader", "def f():\n    raise SystemExit(2)"),
        ("mqtool.engine.repair.verify.log", "from mqtool.engine.repair.recover.log import plan_log"),
        ("mqtool.engine.repair.journal", "from mqtool.engine.repair.recover.log import plan_log"),
        ("mqtool.engine.broker.broker", "from mqtool.engine.remoting.server import Server"),
        ("mqtool.engine.broker.broker", "import asyncio"),
        ("mqtool.engine.broker.broker", "import time"),
        ("mqtool.engine.client.producer", "from mqtool.engine.store.reader import StoreReader"),
        ("mqtool.engine.remoting.connection", "import socket"),
        ("mqtool.engine.streams.server", "from mqtool.formats.remoting import RemotingCommand"),
        ("mqtool.engine.streams.server", "from mqtool.engine.remoting.connection import Connection"),
        ("mqtool.engine.cluster", "from mqtool.commands import serve"),
        ("mqtool.commands.dump", "from mqtool.cli import main"),
        ("mqtool.commands.dump", "def f():\n    import mqtool.spark.source"),
        ("mqtool.commands.dump", "def f():\n    import pyspark"),
        ("mqtool.commands.spark", "import mqtool.spark.source"),
        ("mqtool.commands.export", "import pyarrow.parquet"),
        ("mqtool.cli", "from mqtool.commands import dump"),
        ("mqtool.cli", "import mqtool.engine.store.reader"),
        ("mqtool.__init__", "from mqtool.engine.store.reader import StoreReader"),
        ("mqtool.errors", "import mqtool.formats"),
        ("mqtool.engine.stray", "import json"),
        ("mqtool.stray", "import json"),
        ("mqtool.spark.source", "from mqtool.engine.broker import topics"),
    ],
)
def test_the_checker_rejects(module: str, source: str) -> None:
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mqtool.formats.scan", "from mqtool.errors import FormatError\nfrom mqtool.formats.layout import parse"),
        ("mqtool.formats.scan", "from . import layout\nfrom .layout import parse"),
        ("mqtool.formats.scan", "import datetime\nfrom io import BytesIO\nfrom construct import Struct"),
        ("mqtool.formats.compiled", "import numba"),
        ("mqtool.engine.store.reader", "import mmap, os, time\nopen('x')\ndef f():\n    import rocksdict"),
        ("mqtool.engine.repair.verify.store", "from mqtool.engine.store.reader import StoreReader"),
        ("mqtool.engine.repair.recover.plan", "from mqtool.engine.repair.verify.log import LogJudge"),
        ("mqtool.engine.repair.recover.plan", "from mqtool.engine.repair.journal import Journal"),
        ("mqtool.engine.store.sql92", "import lark"),
        ("mqtool.engine.streams.server", "import asyncio, socket"),
        ("mqtool.engine.cluster", "from mqtool.engine.repair import recover\nfrom mqtool.engine.broker import broker"),
        ("mqtool.commands.dump", "from mqtool.commands._output import Output\nfrom mqtool.engine.store import reader"),
        ("mqtool.commands.spark", "def f():\n    import mqtool.spark.source"),
        ("mqtool.cli", "import sys\ndef main():\n    from mqtool.commands import dump\n    sys.exit(dump())"),
        ("mqtool.__init__", "def __getattr__(name):\n    from mqtool.public_names import load"),
        ("mqtool.spark.source", "import pyspark, pyarrow\nfrom mqtool.engine.repair import verify"),
    ],
)
def test_the_checker_accepts(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_a_module_that_loads_a_slow_library_is_itself_imported_inside_functions() -> None:
    rooms = {
        "mqtool.formats.compiled": "import numba",
        "mqtool.formats.clmul": "import llvmlite\nfrom mqtool.formats import compiled",
        "mqtool.formats.scan": "def f():\n    from mqtool.formats import compiled",
    }
    assert slow_imports(rooms) == []

    assert slow_imports(rooms | {"mqtool.formats.scan": "from mqtool.formats.compiled import jit"})
    assert slow_imports(rooms | {"mqtool.formats.__init__": "from . import clmul"})


def test_nobody_waits_in_a_way_that_may_swallow_a_cancellation() -> None:
    # asyncio.wait_for of Python 3.11 does, where what it waits for happens in the same turn; asyncio.timeout does not.
    found = [
        path for folder in OURS for path in (ROOT / folder).rglob("*.py") if "asyncio.wait_for" in path.read_text()
    ]
    assert found == []


def test_a_package_imports_relative_to_itself() -> None:
    assert violations("mqtool.engine.store.__init__", "from .reader import StoreReader") == []
    assert violations("mqtool.engine.store.__init__", "from ..repair import verify")
