"""Sections of ``docs/format/`` that the code cites, as ``store.md 4.2, 4.5`` or ``remoting.md 3.5 to 3.8``, exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import FORMAT, ROOT, SOURCES, sections

PAGES = {path.name: path for path in sorted(FORMAT.glob("*.md")) if path.name != "README.md"}
_ONE = r"\d+(?:\.\d+)?"
_CITED = re.compile(rf"(?<![\w/])(?:docs/format/)?(\w+\.md)\b((?: {_ONE}(?:(?:,| to| and) {_ONE})*)?)")
"""A page, and the sections that follow its name: ``store.md 4.2, 4.8 to 4.9``. ``docs/replication.md`` is another."""


def citations(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each page of ``docs/format`` that a text names, with the sections that it names of it.

    A citation may be broken into lines anywhere.
    """
    plain = re.sub(r"\s+#?\s*", " ", re.sub(r"\]\([^)]*\)|[\[`]", "", text))
    for page, numbers in _CITED.findall(plain):
        if page in PAGES:
            yield page, re.findall(_ONE, numbers)


def test_every_section_that_the_code_cites_exists() -> None:
    known = {name: {*sections(path.read_text())} for name, path in PAGES.items()}
    found = 0
    for top in SOURCES:
        for path in sorted((ROOT / top).rglob("*.py")):
            text = path.read_text()
            if path.parent == Path(__file__).parent or not any(name in text for name in PAGES):
                continue
            for page, numbers in citations(text):
                assert numbers, f"{path}: {page} is cited without a section"
                assert {*numbers} <= known[page], f"{path}: {page} {numbers}"
                found += len(numbers)
    assert found > 150  # the pattern still finds them


@pytest.mark.parametrize("page", PAGES)
def test_every_section_that_a_page_of_formats_cites_exists(page: str) -> None:
    known = {name: {*sections(path.read_text())} for name, path in PAGES.items()}
    text = PAGES[page].read_text()
    for cited, numbers in citations(text):
        assert {*numbers} <= known[cited], f"{cited} {numbers}"
    for number in re.findall(rf"\bsections? ({_ONE})", text):
        assert number in known[page], number


@pytest.mark.parametrize("page", PAGES)
def test_sections_are_numbered_once_and_in_order(page: str) -> None:
    numbers = [tuple(map(int, one.split("."))) for one in sections(PAGES[page].read_text())]
    assert numbers
    assert numbers == sorted(set(numbers))


def test_a_citation_is_found_however_it_is_broken() -> None:
    text = '"""Do it. (Rules: store.md\n    4.2, 4.8 to 4.9; remoting.md 8.\n"""\n# What remoting.md\n# 3.2 says.'
    assert [*citations(text)] == [("store.md", ["4.2", "4.8", "4.9"]), ("remoting.md", ["8"]), ("remoting.md", ["3.2"])]
    assert [*citations("the table in docs/replication.md, as docs/format/replication.md 2 says")] == [
        ("replication.md", ["2"])
    ]
