"""What the documentation says of the public API is so: every public name is there, and its examples are typed."""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import mqtool
from mqtool import aio, errors
from tools import api_docs

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/clients.md", "docs/testing.md")
_ALWAYS = """
from collections.abc import Callable, Sequence
from typing import Any
import mqtool
from mqtool import ProducerMessage
"""
_GIVEN = {
    "Shop": "Shop: Any",
    "book": "book: Callable[[str], bool]",
    "is_booked": "is_booked: Callable[[list[str]], bool]",
    "handle": "handle: Callable[[mqtool.ConsumerMessage], None]",
    "letter": "letter: mqtool.ConsumerMessage",
    "listen": "def listen(messages: Sequence[mqtool.ConsumerMessage], context: mqtool.ConsumeContext) -> None: ...",
    "producer": "producer: mqtool.Producer",
}
"""What examples take for granted: of the application, or of an example before."""
_MADE = r"\b(def|class|as) {0}\b|^{0} ="


def test_the_page_of_the_public_api_is_current() -> None:
    assert api_docs.PAGE.read_text() == api_docs.page(), "run python tools/api_docs.py"


def test_the_page_has_every_public_name_with_a_text() -> None:
    page = api_docs.PAGE.read_text()
    for name in mqtool.__all__:
        assert name == "aio" or f"\n### {name}\n" in page, name
        assert getattr(mqtool, name).__doc__, name
    for name in aio.__all__:
        assert f"\n- `{name}`: " in page, name


def test_signatures_on_the_page_are_python() -> None:
    """A default that is written otherwise than Python writes it does not parse, or is another."""
    blocks = re.findall(r"```python\n(.*?)\n```", api_docs.PAGE.read_text(), re.DOTALL)
    defaults: list[object] = []
    for block in blocks:
        [function] = ast.parse(f"def {block}: ...").body
        assert isinstance(function, ast.FunctionDef)
        every = [*function.args.defaults, *function.args.kw_defaults]
        defaults += [one.value for one in every if isinstance(one, ast.Constant)]
    assert {"", "*", "127.0.0.1", 30_000, True, None} <= {*defaults}


def test_every_error_and_what_administrators_are_given_is_public() -> None:
    errors_of_ours = {name for name, value in vars(errors).items() if inspect.isclass(value) and name.endswith("Error")}
    assert errors_of_ours <= {*mqtool.__all__}
    for function in vars(aio.AdminClient).values():
        text = str(getattr(function, "__annotations__", {}).get("return", ""))
        assert {*re.findall(r"\b[A-Z]\w+", text)} - {"Changes", "None", "Self"} <= {*mqtool.__all__}, function


def test_options_that_kinds_have_in_common_are_told_of_each() -> None:
    page = api_docs.PAGE.read_text()
    for kind in (mqtool.PushConsumerOptions, mqtool.LitePullConsumerOptions, mqtool.ProducerOptions):
        own = page.partition(f"\n### {kind.__name__}\n")[2].partition("\n### ")[0]
        common = {field.name for field in dataclasses.fields(mqtool.ClientOptions)}
        for field in dataclasses.fields(kind):
            assert field.name in common or f"`{field.name}`" in own, (kind, field.name)


def test_the_examples_of_the_documentation_pass_mypy_strictly(tmp_path: Path) -> None:
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert blocks, page
        for number, block in enumerate(blocks):
            missing = [
                one
                for name, one in _GIVEN.items()
                if name in block and not re.search(_MADE.format(name), block, re.MULTILINE)
            ]
            path = tmp_path / f"{Path(page).stem.lower()}_{number}.py"
            path.write_text("\n".join([_ALWAYS, *missing, block]))
    settings = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
