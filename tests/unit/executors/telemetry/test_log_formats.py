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


@pytest.mark.parametrize(
    ("lines", "totals", "step"),
    [
        (["step 1/800 loss 0.4", "step 2/800 loss 0.4"], {"step": 800}, 2),
        (["step 1 loss 0.4", "step 2 loss 0.4"], {}, 2),
        (["Epoch 3/10, loss: 0.4"], {"epoch": 10}, None),
        (["step 10 of 360", "step 20 of 360"], {"step": 360}, 20),
        (["Epoch 3 of 10, loss: 0.4"], {"epoch": 10}, None),
        (["step 3 of the plan", "Step 2 of 5 : RUN make"], {}, None),
        (["step=7 pi=3.14", "step=8 pi=3.1, time=2"], {}, 8),
        (["step=7 in the plan", "step=7 a=1 b=2 c=3 d=4"], {}, None),
        # Of an epoch, or in all: only the second epoch shows that.
        (["Epoch [1/5], Step [100/600], Loss: 1", "Epoch [1/5], Step [300/600], Loss: 1"], {"epoch": 5}, 300),
        (
            [f"Epoch [{e}/5], Step [{s}/600], Loss: 0.4" for e in (1, 2) for s in (100, 500)],
            {"epoch": 5, "step": 3000},
            1100,
        ),
        (
            [f"Epoch [{e}/5], Step [{s}/600], Loss: 0.4" for e in (0, 1) for s in (100, 500)],
            {"epoch": 5, "step": 3000},
            1100,
        ),
        (
            [f"Epoch {e}/5, step {120 * (e - 1) + s}/600, loss: 0.4" for e in (1, 2) for s in (50, 100)],
            {"epoch": 5, "step": 600},
            220,
        ),
        # How often it begins anew is not said.
        ([f"step {s}/600 loss 0.4" for _ in range(2) for s in (100, 500)], {}, 500),
        # Something else is counted in between.
        (["step 1/800 loss 0.4", "step 5/20 val_loss 0.4", "step 2/800 loss 0.4"], {}, 2),
        (["[INFO] x >>   Total optimization steps = 1,200", "other = 1,200", " = ,"], {"step": 1200}, None),
    ],
)
def test_a_log_says_how_long_it_will_be(lines, totals, step):
    metrics = LogMetrics()
    metrics.feed("".join(f"{line}\n" for line in lines).encode())
    assert metrics.totals == totals
    assert metrics.last.get("step") == step


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


def test_a_line_that_only_counts_steps_shows_them_and_their_number():
    log = LogMetrics()
    assert log.feed(b"step 1/300\nstep 2/300\nStep 1/3\nStep 4/40 : RUN make\n") == [{"step": 1}, {"step": 2}]
    assert log.totals == {"step": 300}
