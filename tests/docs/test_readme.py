"""README.md: short, and without links that lead nowhere where a package index shows it."""

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.checks import CHECKS
from tests.docs.pages import ROOT, links

README = (ROOT / "README.md").read_text()


def test_the_readme_has_150_lines_at_most() -> None:
    assert len(README.splitlines()) <= 150


def test_the_readme_counts_the_codes_of_checks() -> None:
    assert f"| {len(CHECKS)} codes, each with an explanation" in README


def test_a_package_index_gets_the_readme_without_relative_links(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = _hook(monkeypatch)
    metadata: dict[str, Any] = {}
    hook.Readme(ROOT).update(metadata)

    text = metadata["readme"]["text"]
    assert any("://" not in link for link in links(README))
    assert all("://" in link for link in links(text))
    assert "![" not in text
    assert "[Apache RocketMQ](https://rocketmq.apache.org/)" in text
    assert "inspect, check, diagnose, repair" in text  # the words of links stay


def _hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the hook, which hatch loads, without hatch."""

    class Interface:
        def __init__(self, root: Path) -> None:
            self.root = root

    plugin = types.ModuleType("hatchling.metadata.plugin.interface")
    plugin.__dict__["MetadataHookInterface"] = Interface
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    spec = importlib.util.spec_from_file_location("readme_hook", ROOT / "tools" / "readme.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
