import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.spec.parameter import format_value
from trainmaster.spec.units import (
    dollars,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration,
    parse_money,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("3h", 10800),
        ("1h30m", 5400),
        ("30m", 1800),
        ("30 min", 1800),
        ("2d", 172800),
        ("1w", 604800),
        ("500ms", 0.5),
        ("90", 90),
        ("1.5h", 5400),
        (" 1h 5s ", 3605),
        ("1e3", 1000),
        ("0", 0),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "3x", "-1s", "1h-2m", "1 2", "forever", "1e400", "101w52d" * 100, "1:30", "∞"]
)
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match=r"; "):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GB", 16 * 10**9),
        ("16G", 16 * 10**9),
        ("16gb", 16 * 10**9),
        ("16 GiB", 16 << 30),
        ("16Gi", 16 << 30),
        ("0.5TB", 5 * 10**11),
        ("100B", 100),
        ("512MiB", 512 << 20),
        ("1kB", 1000),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "16", "16i", "16iB", "GB", "-1GB", "16 bytes", "16XB", "1e3GB", "99999999999PB"]
)
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match=r"; "):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "usd"),
    [("$20", 20), ("20 USD", 20), ("20USD", 20), ("$0.5", 0.5), ("USD 3", 3), ("US$ 3", 3), ("3 usd", 3)],
)
def test_money(text, usd):
    assert parse_money(text) == usd


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("20", "without a currency"),
        ("20 EUR", "USD"),
        ("€20", "USD"),
        ("20 euros", "USD"),
        ("", "no amount"),
        ("-$5", "no amount"),
        ("$", "no amount"),
        ("$-5", "no amount"),
        ("$1,000", "no amount"),
    ],
)
def test_what_is_no_money(text, found):
    with pytest.raises(ValueError, match=found):
        parse_money(text)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(hours, minutes, seconds):
    expected = hours * 3600 + minutes * 60 + seconds
    if expected <= 100 * 365 * 86400:
        assert parse_duration(f"{hours}h{minutes}m{seconds}s") == expected


@given(st.text(max_size=12))
def test_any_text_is_a_unit_or_a_message(text):
    for parse in (parse_duration, parse_bytes, parse_money):
        try:
            found = parse(text)
        except ValueError as error:
            found = str(error)
        assert "; " in found if isinstance(found, str) else 0 <= found < math.inf


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans())
def test_values_print_without_loss(value):
    text = format_value(value)
    assert text == str(value).lower() if isinstance(value, bool) else type(value)(text) == value


@pytest.mark.parametrize(
    ("kind", "write"), [("durations", format_duration), ("money", dollars), ("bytes", format_bytes)]
)
def test_durations_money_and_bytes_are_written_one_way(kind, write):
    """R12; the browser writes the same: tests/integration/test_pages_rules.py."""
    vectors = json.loads((Path(__file__).parents[2] / "vectors" / f"{kind}.json").read_text())
    assert [write(number) for number, _ in vectors] == [words for _, words in vectors]
