"""Durations, sizes, money and counts as people write them. Units are in the names of what comes out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from trainmaster.lazy import regex

#: An upper limit for every duration: 100 years. What is longer is a slip, and would overflow clocks.
MAX_DURATION_S: Final = 100 * 365 * 86400.0
#: Seconds and dollars of quotes are stored with so many digits; smaller differences mean nothing.
QUOTE_RESOLUTION: Final = 1e-6
_MAX_BYTES: Final = 1 << 63

_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = regex(rf"\s*({_NUMBER})\s*(ms|min|s|m|h|d|w)")
_PLAIN_NUMBER = regex(rf"{_NUMBER}(?:[eE][-+]?[0-9]+)?")
_BYTES = regex(rf"({_NUMBER})\s*([kmgtp]?)(i?)(b?)", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DOLLARS = regex(
    rf"(?:US)?\$\s*({_NUMBER})(?:\s*USD)?|({_NUMBER})\s*(?:USD|\$)|USD\s*({_NUMBER})", re.IGNORECASE
)
_OTHER_CURRENCY = regex(r"[A-Z]{3}|[£€¥₹]|\b(?:euros?|pounds?|yen|francs?)\b", re.IGNORECASE)

#: Of times below so many seconds: to which they are rounded, its unit, and how large the other one is.
_SPANS: Final[tuple[tuple[float, int, str, int, str], ...]] = (
    (60, 1, "s", 60, ""),
    (600, 1, "s", 60, "min"),
    (3600, 60, "min", 3600, ""),
    (86400, 60, "min", 3600, "h"),
    (math.inf, 3600, "h", 86400, "d"),
)


def parse_duration(text: str) -> float:
    """Seconds in a duration.

    Args:
        text: ``60s``, ``1h30m``, ``1.5h``, ``500ms``, ``2d``; a plain number is seconds.

    Raises:
        ValueError: with a message ``what was found; what would be right``.

    >>> parse_duration("1h30m"), parse_duration("60"), parse_duration("500ms")
    (5400.0, 60.0, 0.5)
    """
    stripped = text.strip()
    seconds = 0.0
    if _PLAIN_NUMBER.fullmatch(stripped):
        seconds = float(stripped)
    else:
        position = 0
        while position < len(stripped):
            match = _DURATION_PART.match(stripped, position)
            if match is None:
                raise ValueError(f"'{text}' is no duration; write 60s, 30m, 1h30m, 2d or a number of seconds")
            seconds += float(match[1]) * _SECONDS[match[2]]
            position = match.end()
        if not stripped:
            raise ValueError("an empty duration; write 60s, 30m, 1h30m, 2d or a number of seconds")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"'{text}' is longer than 100 years; write a shorter duration")
    return seconds


def parse_bytes(text: str) -> int:
    """Bytes in a size. ``GB`` and ``G`` are 10^9 bytes, ``GiB`` and ``Gi`` 2^30; case does not matter.

    Raises:
        ValueError: with a message ``what was found; what would be right``. A number without a unit is
            refused, since ``memory: 16`` hardly means 16 bytes.

    >>> parse_bytes("16GB"), parse_bytes("1.5 GiB"), parse_bytes("512Mi")
    (16000000000, 1610612736, 536870912)
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no size; write 16GB (10^9 bytes each) or 16GiB (2^30 bytes each)")
    number, prefix, binary, byte = match.groups()
    if not (prefix or byte) or (binary and not prefix):
        raise ValueError(
            f"'{text}' has no unit; write {number}GB (10^9 bytes each) or {number}GiB (2^30 bytes each)"
        )
    size: float = float(number) * (1024 if binary else 1000) ** _POWERS[prefix.lower()]
    if size >= _MAX_BYTES:
        raise ValueError(f"'{text}' is more than any machine has; write a smaller size")
    return round(size)


def parse_money(text: str) -> float:
    """US dollars in an amount.

    Args:
        text: ``$20``, ``20 USD``, ``20USD``.

    Raises:
        ValueError: with a message ``what was found; what would be right``. Without a currency, or in another.

    >>> parse_money("$20"), parse_money("2.50 USD")
    (20.0, 2.5)
    """
    stripped = text.strip()
    if match := _DOLLARS.fullmatch(stripped):
        return float(match[1] or match[2] or match[3])
    if _PLAIN_NUMBER.fullmatch(stripped):
        raise ValueError(f"a budget without a currency: {stripped}; write ${stripped} or {stripped} USD")
    if _OTHER_CURRENCY.search(stripped):
        raise ValueError(f"'{text}' is not in US dollars; all prices are in USD: write $20 or 20 USD")
    raise ValueError(f"'{text}' is no amount of money; write $20 or 20 USD")


def parse_dollars(text: str) -> float:
    """The same where nothing but US dollars can be meant: a number alone will do.

    >>> parse_dollars("2.50"), parse_dollars("$20")
    (2.5, 20.0)
    """
    stripped = text.strip()
    return parse_money(f"${stripped}" if _PLAIN_NUMBER.fullmatch(stripped) else stripped)


def format_duration(seconds: float) -> str:
    """A time span for people, in at most two units: `duration` of the pages' ticking.js writes it alike.

    >>> [format_duration(each) for each in (3.14, 17.2, 75, 840, 9360, 273_600)]
    ['3.1 s', '17 s', '1 min 15 s', '14 min', '2 h 36 min', '3 d 4 h']
    """
    tenths = max(0, math.floor(10 * seconds + 0.5))
    if tenths < 100:
        return f"{tenths / 10:g} s"

    rounded, span = next(
        (rounded, span)
        for span in _SPANS
        if (rounded := span[1] * math.floor(seconds / span[1] + 0.5)) < span[0]
    )
    _, small, unit, large, of = span
    whole, rest = divmod(rounded, large)
    return " ".join([f"{whole} {of}"] * (whole > 0) + [f"{rest // small} {unit}"] * (rest > 0))


def worked_s(run: Mapping[str, Any]) -> float:
    """What a run took, of its line or its status: without what it waited for others or for a person.

    >>> worked_s({"seconds": 40.0, "queued_s": 30.0}), worked_s({"seconds": 40.0})
    (10.0, 40.0)
    """
    return max(0.0, float(run["seconds"]) - float(run.get("queued_s", 0.0)))


def price(usd: float) -> str:
    """Dollars with the digits that matter, rounded up: what is agreed to is not exceeded.

    >>> price(0.4), price(12.345), price(0.00123), price(0.06)
    ('$0.40', '$12.35', '$0.0013', '$0.06')
    """
    if usd >= 0.1:
        return f"${math.ceil(usd * 100 - 1e-9) / 100:.2f}"
    return f"${math.ceil(usd * 10_000 - 1e-9) / 10_000:g}"


def left_text(left_usd: float, of_usd: float) -> str:
    """What is left of an amount, or how much more than it was taken.

    >>> left_text(7.5, 10.0), left_text(-2.5, 10.0), left_text(-5e-17, 10.0)
    ('$7.50 left of $10.00', '$2.50 beyond $10.00', '$0 left of $10.00')
    """
    if left_usd <= -0.0001:
        return f"{dollars(-left_usd)} beyond {dollars(of_usd)}"
    return f"{dollars(max(0.0, left_usd))} left of {dollars(of_usd)}"


def dollars(usd: float) -> str:
    """An amount for people: cents, and two digits of what is less than ten cents.

    >>> dollars(1234.5), dollars(0.0018), dollars(0.0), dollars(3e-7), dollars(-5.0)
    ('$1,234.50', '$0.0018', '$0', '<$0.0001', '-$5.00')
    """
    if usd <= -0.0001:
        return f"-{dollars(-usd)}"
    if not usd:
        return "$0"
    if usd < 0.0001:
        return "<$0.0001"
    return f"${usd:,.2f}" if usd >= 0.0995 else f"${usd:.2g}"


def enough_dollars(usd: float) -> str:
    """As `dollars`, but never less: what is given for an amount that has to be reached.

    >>> enough_dollars(0.0204), enough_dollars(0.07), enough_dollars(123.4511), enough_dollars(2.0)
    ('$0.021', '$0.07', '$123.46', '$2.00')
    """
    step = 0.01 if usd >= 0.0995 or usd <= 0 else 10.0 ** (math.floor(math.log10(usd)) - 1)
    return dollars(math.ceil(round(usd / step, 6)) * step)


def counted(count: int, noun: str) -> str:
    """How many things there are, for people.

    >>> counted(1, "chunk"), counted(2000, "chunk")
    ('1 chunk', '2,000 chunks')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """Bytes for people: two digits at least, halves upwards; `bytesOf` of the pages' page.js writes it alike.

    >>> format_bytes(999), format_bytes(34_500_000), format_bytes(1_200_000_000), format_bytes(-5e6)
    ('999 B', '35 MB', '1.2 GB', '-5.0 MB')
    """
    if count < 0:
        return f"-{format_bytes(-count)}"
    units = ["TB", "GB", "MB", "kB", "B"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop()
    if count >= 9.95 or units[-1] == "B":
        return f"{math.floor(count + 0.5)} {units[-1]}"
    return f"{math.floor(10 * count + 0.5) / 10:.1f} {units[-1]}"


def format_mbps(mbps: float) -> str:
    """What goes through a network, for people.

    >>> format_mbps(93.75), format_mbps(940.0), format_mbps(9_412.0)
    ('94 Mbit/s', '940 Mbit/s', '9.4 Gbit/s')
    """
    if mbps >= 999.5:
        return f"{mbps / 1000:.2g} Gbit/s"
    return f"{mbps:.2g} Mbit/s" if mbps < 99.5 else f"{mbps:.0f} Mbit/s"


def next_month(now: float) -> str:
    """The day (UTC) on which the next month begins.

    >>> next_month(0.0), next_month(364 * 86400.0)
    ('1970-02-01', '1971-01-01')

    Args:
        now: Unix seconds.
    """
    from datetime import UTC, datetime, timedelta  # few commands need it

    return f"{(datetime.fromtimestamp(now, UTC).replace(day=28) + timedelta(days=4)).replace(day=1):%Y-%m-%d}"
