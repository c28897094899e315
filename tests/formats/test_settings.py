"""Tables of settings: what is given is taken, told and refused by RocketMQ's names."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import UsageError
from mqtool.formats.settings import Settings, build_settings, parse_settings, setting


@dataclass(frozen=True, slots=True)
class Some(Settings):
    """One setting of each kind."""

    name: str = setting("someName", "a")
    flag: bool = setting("someFlag", False)
    count: int = setting("someCount", 3)
    offset: int = setting("someOffset", 0, least=0)


names = st.text().map(lambda text: text.strip(" \t\f"))


@given(names, st.booleans(), st.integers(1, (1 << 31) - 1), st.integers(0, (1 << 31) - 1))
def test_settings_told_and_taken_again_are_the_same(name: str, flag: bool, count: int, offset: int) -> None:
    some = Some(name, flag, count, offset)

    again, unknown = Some().updated(parse_settings(build_settings(some.texts())))

    assert (again, unknown) == (some, [])


def test_what_has_no_effect_is_named_and_all_else_stays() -> None:
    assert Some(count=7).updated({"someFlag": "TRUE", "other": "1"}) == (Some(flag=True, count=7), ["other"])


@pytest.mark.parametrize(
    "given",
    [
        {"someFlag": "yes"},
        {"someCount": "0"},
        {"someCount": "x"},
        {"someCount": "2147483648"},
        {"someCount": "99999999991"},
        {"someOffset": "-1"},
    ],
)
def test_a_value_that_is_not_of_its_kind_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="=".join(*given.items())):
        Some().updated(given)


@pytest.mark.parametrize(
    ("text", "settings"),  # as java.util.Properties of JDK 17 reads them
    [
        ("a=b\\\n   c", {"a": "bc"}),
        ("a\\=b = c\\:d", {"a=b": "c:d"}),
        ("\\u0041b c", {"Ab": "c"}),
        ("a=1\r\n! no=setting\r# none\n b : 2", {"a": "1", "b": "2"}),
        ("a=\\\\\nb=\\t|\\x", {"a": "\\", "b": "\t|x"}),
        ("a=\u2028b\x85", {"a": "\u2028b\x85"}),
        ("a=x\\\n# y", {"a": "x# y"}),
    ],
)
def test_settings_are_read_as_java_reads_properties(text: str, settings: dict[str, str]) -> None:
    assert parse_settings(text) == settings
