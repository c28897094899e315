"""The pages of the documentation, and what can be linked or cited in them."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FORMAT = DOCS / "format"
SOURCES = ("mqtool", "tests", "bench", "tools", "spark_jobs", "pyspark_rocketmq", "pyspark_rocketmq_store")
"""Folders with Python that may cite a page."""

_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\.? ")


def pages() -> list[Path]:
    """Return every page that readers are given: README.md and the like, and all below ``docs/``."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "fixtures" / "README.md"]


def headings(text: str) -> list[str]:
    """Return the headings of a page, without those in blocks of code."""
    return _HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def sections(text: str) -> list[str]:
    """Return the numbers of a page's numbered sections, in order."""
    return [found[1] for heading in headings(text) if (found := _NUMBER.match(heading))]


def anchors(text: str) -> set[str]:
    """Return what a link may name behind ``#``, by the rule of GitHub and of mkdocs for our headings."""
    found: set[str] = set()
    for heading in headings(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        number = next(n for n in range(len(found) + 1) if (f"{slug}-{n}" if n else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page, which is read once."""
    return anchors(page.read_text())


def links(text: str) -> Iterator[str]:
    """Yield the target of each link of a page, without those in code."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", plain))
