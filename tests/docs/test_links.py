"""Every link of the documentation leads somewhere: to a file of the repository, and to a heading of it."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, anchors_of, links, pages

_ALLOWED = re.compile(r"https://(keepachangelog\.com|semver\.org|rocketmq\.apache\.org|www\.apache\.org)/")
"""What is not ours and may be linked: no address of this project is known."""


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page.read_text()):
        if "://" in link:
            assert _ALLOWED.match(link), link
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


def test_a_link_in_code_is_none_and_headings_make_anchors() -> None:
    text = "# Two `words` (of it)\n\n## Two words of it\n\n```\n# none\n[a](b)\n```\n`[c](d)` [e](f#g)\n"
    assert [*links(text)] == ["f#g"]
    assert anchors(text) == {"two-words-of-it", "two-words-of-it-1"}
