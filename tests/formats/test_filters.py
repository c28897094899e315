import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FilterError, Status
from mqtool.formats.filters import MAX_DEPTH, MAX_LENGTH, compile_sql92, parse_tags

FIXTURE = Path(__file__).parents[2] / "fixtures" / "sql92_oracle.json.xz"
ORACLE: dict[str, Any] = json.loads(lzma.decompress(FIXTURE.read_bytes()))

names = st.sampled_from(["a", "b", "missing"])
texts = st.sampled_from(["5", "-5", "5.0", "true", "abc", "", "NaN", "99999999999"]) | st.text(max_size=8)
properties = st.dictionaries(st.sampled_from(["a", "b"]), texts)
literals = st.sampled_from(["5", "5.5", "3000000000", "'5'", "'abc'", "TRUE", "''", "1e400", "NULL"])
operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
comparisons = st.builds("{} {} {}".format, names, operators, names | literals)
conditions = st.recursive(
    comparisons | st.builds("{} {}".format, names, st.sampled_from(["IS NULL", "IN ('5')", "NOT CONTAINS 'b'"])),
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR", "=", "<>"]), inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=8,
)
words = st.sampled_from([*"()=<>+-,'.#", "NOT", "and", "OR", "IS", "IN", "BETWEEN", "CONTAINS", "--", "/*", "*/", "\n"])


def outcome(expression: str, sets: list[dict[str, str]]) -> str:
    try:
        matches = compile_sql92(expression)
    except FilterError:
        return "E"
    return "".join("FT"[matches(one)] for one in sets)


@pytest.mark.parametrize("table", ORACLE["sql92"])
def test_sql92_filters_mean_what_they_mean_to_rocketmq(table: dict[str, Any]) -> None:
    # Null and exception both mean that the message does not match.
    no_match = str.maketrans("NX", "FF")

    mismatches = {
        expression: result
        for expression, result in table["results"].items()
        if outcome(expression, table["properties"]) != result.translate(no_match)
    }

    assert mismatches == {}


@pytest.mark.parametrize(("expression", "wanted"), ORACLE["tags"].items())
def test_tag_expressions_mean_what_they_mean_to_rocketmq(expression: str, wanted: dict[str, Any]) -> None:
    if "error" in wanted:
        with pytest.raises(FilterError):
            parse_tags(expression)
        return

    tags = parse_tags(expression)

    assert tags.expression == wanted["expression"]
    assert tags.tags == set(wanted["tags"])
    assert tags.codes == set(wanted["codes"])
    assert "".join("FT"[tags.matches_code(code)] for code in ORACLE["tags_codes"]) == wanted["matched"]


def test_a_tag_is_wanted_by_its_name_and_not_by_its_code_alone() -> None:
    wanted = parse_tags("AaAa || TagB")

    assert wanted.matches_code(2031744)
    assert wanted.matches_tag("AaAa")
    assert not wanted.matches_tag("BBBB")  # of the same hash code
    assert not wanted.matches_tag(None)
    assert parse_tags("*").matches_tag(None)


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("", 1, "ends too early"),
        ("a >", 4, "ends too early"),
        ("a = #", 5, "no token starts with '#'"),
        ("a = 'it", 5, "no token starts with"),
        ("(a = 5 b)", 8, "unexpected 'b'"),
        ("a = 5 AND\nb IN (5)", 17, "unexpected '5'"),
        ("5", 1, "a condition is expected"),
        ("b = 1 AND NULL = a", 11, "IS NULL"),
        ("TRUE = 5", 1, "neither text nor numbers"),
        ("a > 'x'", 5, "only numbers and properties"),
        ("a BETWEEN 3 AND 1", 11, "lower bound of BETWEEN must come first"),
        ("5 IN ('x')", 1, "IN needs"),
        ("a = 9223372036854775808", 5, "64 bits"),
        ("a > 0.0", 5, "greater than zero"),
    ],
)
def test_a_refused_filter_tells_what_and_where(expression: str, position: int, reason: str) -> None:
    with pytest.raises(FilterError, match=re.escape(reason)) as caught:
        compile_sql92(expression)

    assert caught.value.position == position
    assert caught.value.exit_code == Status.USAGE


@pytest.mark.parametrize(
    ("expression", "ignored"),
    [
        ("a = 5", ""),
        ("a LIKE 'x%'", "LIKE 'x%'"),
        ("a = 5f", "f"),
        ("a = 5 -- no line end", "-- no line end"),
        ("a = 5 -- a line end\n", ""),
    ],
)
def test_what_rocketmq_leaves_unread_is_told(expression: str, ignored: str) -> None:
    assert compile_sql92(expression).ignored == ignored


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 60_000,
        "-" * MAX_LENGTH,
        "- " * 30_000 + "5 = a",
        "NOT " * 16_000 + "a",
        "NOT (" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1),
        "a" + " IS NULL" * 8_000,
        "a" + " = b" * 16_000,
        "a = '" + "x" * MAX_LENGTH + "'",
    ],
    ids=lambda expression: expression[:12],
)
def test_a_filter_too_deep_or_too_long_is_refused(expression: str) -> None:
    with pytest.raises(FilterError, match=r"deeper|longer"):
        compile_sql92(expression)


@pytest.mark.parametrize(
    "expression",
    [
        " OR ".join(f"a={number}" for number in range(6_000)),
        "a IN (" + ",".join(f"'{number}'" for number in range(6_000)) + ")",
        "(" * 200 + "a = 5" + ")" * 200,
        "NOT (" * (MAX_DEPTH - 2) + "a = 5" + ")" * (MAX_DEPTH - 2),
    ],
    ids=lambda expression: expression[:12],
)
def test_a_long_filter_within_the_bounds_works(expression: str) -> None:
    assert compile_sql92(expression)({"a": "5"})


@given(st.text() | st.lists(names | literals | operators | words).map(" ".join), properties)
def test_any_text_compiles_or_is_refused_in_one_sentence(expression: str, message: dict[str, str]) -> None:
    try:
        assert compile_sql92(expression)(message) in (True, False)
    except FilterError as error:
        assert 1 <= error.position <= len(expression) + 1
        assert "\n" not in str(error)


@given(conditions, properties)
def test_a_condition_its_negation_and_null_exclude_each_other(condition: str, message: dict[str, str]) -> None:
    variants = [condition, f"NOT ({condition})", f"({condition}) IS NULL"]

    assert [outcome(variant, [message]) for variant in variants].count("T") <= 1


@given(conditions, conditions, properties)
def test_and_is_not_or_of_the_negations(one: str, other: str, message: dict[str, str]) -> None:
    both = outcome(f"({one}) AND ({other})", [message])

    assert both == outcome(f"NOT (NOT ({one}) OR NOT ({other}))", [message])


def test_lark_loads_only_for_sql92() -> None:
    code = (
        "import sys; from mqtool.formats import filters; filters.parse_tags('TagA || TagB'); "
        "assert 'lark' not in sys.modules; filters.compile_sql92('a = 5'); assert 'lark' in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
