"""The page of damaged stores: it says what is so, and ``recover`` keeps no fewer messages than any broker."""

from pathlib import Path

import pytest

from tests.damage import cases
from tests.engine.repair.verdict_table import RecipeRow, page, row_of

PAGE = Path(__file__).parents[3] / "docs" / "reports" / "damaged.md"

pytestmark = pytest.mark.xdist_group("verdict-table")


@pytest.fixture(scope="module")
def rows() -> list[RecipeRow]:
    return [row_of(case) for case in cases()]


def test_the_page_is_what_is_counted(rows: list[RecipeRow]) -> None:
    assert PAGE.read_text() == page(rows)


def test_recover_keeps_all_that_is_sound_and_no_fewer_than_any_broker(rows: list[RecipeRow]) -> None:
    assert [row for row in rows if row.ours < row.there or row.more < 0] == []


def test_as_broker_foretells_every_verdict(rows: list[RecipeRow]) -> None:
    assert [row for row in rows if row.foretold < len(row.brokers)] == []
