"""The site of the documentation: every page is in its navigation, and links lead to pages of the site."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors_of, links
from tools import site


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.gather(folder)
    return folder


def test_every_page_is_in_the_navigation(gathered: Path) -> None:
    listed = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(gathered)) for path in gathered.rglob("*.md"))


def test_links_of_the_site_lead_to_its_pages(gathered: Path) -> None:
    found = 0
    for page in gathered.rglob("*.md"):
        for link in links(page.read_text()):
            if "://" in link:
                continue
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            assert target.is_relative_to(gathered.resolve()), (page, link)
            assert target.is_file(), (page, link)
            assert not anchor or anchor in anchors_of(target), (page, link)
            found += 1
    assert found > 200
