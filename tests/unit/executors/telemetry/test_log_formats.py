"""What well-known programs print: `logs/README.md`."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.executors.telemetry.log_metrics import LogMetrics

LOGS = sorted((Path(__file__).parent / "logs").glob("*.txt"))
_ESCAPES = {r"\t": "\t", r"\r": "\r", r"\b": "\b", r"\x1b": "\x1b"}


def read(path):
    """The log, and its rows."""
    log, rows = "", []
    for line in path.read_text().splitlines():
        if line.startswith("=> "):
            rows.append(json.loads(line[3:]))
        elif not line.startswith("# "):
            for written, meant in _ESCAPES.items():
                line = line.replace(written, meant)
            log += line if line.endswith("\r") else line + "\n"
    return log.encode(), rows


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_what_well_known_programs_print(path):
    log, expected = read(path)
    assert LogMetrics().feed(log) == expected

    @settings(max_examples=20)
    @given(st.lists(st.integers(0, len(log)), max_size=40))
    def cut(cuts):
        metrics, found, done = LogMetrics(), [], 0
        for end in [*sorted(cuts), len(log)]:
            found += metrics.feed(log[done:end])
            done = end
        assert found == expected

    cut()


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_each_log_names_where_its_lines_come_from(path):
    assert path.read_text().startswith("# github.com/")


WHOLE = b"".join(read(path)[0] for path in LOGS)


@given(
    st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.sampled_from(b"019-.:|[]{}()%/ \t\r\n'aE\xff")),
        max_size=60,
    )
)
def test_nothing_raises_where_such_lines_are_torn(changes):
    log = bytearray(WHOLE)
    for place, byte in changes:
        log[place] = byte
    for row in LogMetrics().feed(bytes(log)):
        assert all(isinstance(value, (int, float)) for value in row.values())
