"""What a task has reported: read on from look to look, true in every column of a picture, over any axis."""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.task.layout import RunFiles
from trainmaster.service.runs import task_reports
from trainmaster.service.runs.task_reports import Column, TaskReports, reports_of, thinned
from trainmaster.spec import Recipe
from trainmaster.sweeps import Curve

EXPERIMENT = Recipe.from_text("name: a\nexperiments: {train: {command: ls}}\n").experiments["train"]


@pytest.fixture
def attempts(tmp_path):
    """Of one task the places of two attempts."""
    task_reports._kept.clear()
    found = [RunFiles(tmp_path).attempt("a-1", "train", 0, number) for number in (1, 2)]
    for place in found:
        place.make_directories(["worker-0"])
    return found


def write(place, rows, mode="a"):
    with place.metrics("worker-0").open(mode) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def points(reports, name="loss"):
    column = reports.columns[name]
    return list(zip(column.steps, column.values, strict=True))


def test_each_look_reads_on_and_the_last_line_counts_at_the_end(attempts, monkeypatch):
    place = attempts[0]
    write(place, [{"step": 1, "loss": 2}])
    first = reports_of(EXPERIMENT, [place])
    with place.metrics("worker-0").open("a") as file:
        file.write('{"step": 2, "loss": 1}\n{"step": 3, "loss": 0.5}')
    assert reports_of(EXPERIMENT, [place]) is first
    assert points(first) == [(1, 2), (2, 1)]
    assert points(reports_of(EXPERIMENT, [place], is_over=True)) == [(1, 2), (2, 1), (3, 0.5)]
    write(attempts[1], [{"step": 2, "loss": 9}, {"epoch": 1, "acc": 1}])
    both = reports_of(EXPERIMENT, attempts)
    assert (points(both), points(both, "acc")) == ([(1, 2), (2, 9)], [(2, 1)])
    assert both.begun == {"loss": 3}
    with place.metrics("worker-0").open("a") as file:
        file.write('\n{"step": 4, "loss": 0.25}\n')
    late = reports_of(EXPERIMENT, attempts)
    assert late is not both, "files of a lost machine may come late: all is read again, in order"
    assert points(late) == [(1, 2), (2, 9)]
    assert late.begun == {"loss": 4}
    monkeypatch.setattr(task_reports, "_MOST_KEPT", 2)
    other = RunFiles(place.directory).attempt("a-1", "train", 1, 1)
    reports_of(EXPERIMENT, [other])
    assert len(task_reports._kept) == 1, "what was looked at longest ago goes first"


def test_what_is_printed_counts_where_nothing_is_reported(attempts):
    log = attempts[0].log("worker-0")
    log.write_text("step 1 loss 0.5\nstep 2 loss 0.2")
    assert points(reports_of(EXPERIMENT, attempts[:1])) == [(1, 0.5)]
    log.write_text(log.read_text() + "5\n")
    assert points(reports_of(EXPERIMENT, attempts[:1])) == [(1, 0.5), (2, 0.25)]
    log.write_text(log.read_text() + "step 3 loss 0.1")
    assert points(reports_of(EXPERIMENT, attempts[:1], is_over=True))[-1] == (3, 0.1)


@pytest.mark.parametrize("size", ["shorter", "as long", "longer"])
def test_what_was_rewritten_is_read_from_its_start(attempts, size):
    place = attempts[0]
    write(place, [{"step": step, "loss": 9} for step in range(1, 101)])
    first = reports_of(EXPERIMENT, attempts[:1])
    last = {"shorter": 50, "as long": 100, "longer": 120}[size]
    write(place, [{"step": step, "diff": 1} for step in range(1, last + 1)], "w")
    reports = reports_of(EXPERIMENT, attempts[:1])
    assert reports is not first
    assert points(reports, "diff") == [(step, 1) for step in range(1, last + 1)]
    assert list(reports.columns) == ["diff"]
    assert reports_of(EXPERIMENT, attempts[:1]) is reports


NUMBERS = st.one_of(st.integers(-3, 9), st.sampled_from([0.5, math.nan, math.inf, 1 << 70]))
ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["step", "epoch", "loss", "acc", "seconds"]),
        st.one_of(NUMBERS, NUMBERS, st.sampled_from([True, "word"])),
        min_size=1,
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS, st.booleans(), st.data())
def test_rows_at_once_are_as_rows_one_by_one(tmp_path_factory, rows, is_rising, data):
    """However reports are read, in whatever pieces: as if each had come alone."""
    if is_rising:
        rows = [
            {"step": step, **dict.fromkeys(rows[0], 0.5 * step), "epoch": step // 3}
            for step, _ in enumerate(rows)
        ]
    place = RunFiles(tmp_path_factory.mktemp("a")).attempt("a-1", "train", 0, 1)
    place.make_directories(["worker-0"])
    at_once, singly = TaskReports(), TaskReports()
    cut = data.draw(st.integers(0, len(rows)))
    for piece in (rows[:cut], rows[cut:]):
        write(place, piece)
        at_once.read(EXPERIMENT, [place], is_over=False)
    singly._written.append(Column())
    for row in rows:
        singly._add({key: float(value) if value == 1 << 70 else value for key, value in row.items()}, 0)
    assert at_once.axis == singly.axis
    assert list(at_once.columns) == list(singly.columns)
    for name in singly.columns:
        assert repr(points(at_once, name)) == repr(points(singly, name))
    assert list(at_once._epochs.steps) == list(singly._epochs.steps)
    assert repr(at_once._at) == repr(singly._at)


SHAPES = {
    "decay with spikes": lambda at, n: math.exp(-4 * at / n) + 100 * (at % 997 == 5) - 7 * (at % 991 == 3),
    "noise": lambda at, n: random.Random(at).gauss(0, 1),
    "some are none": lambda at, n: math.nan if at % 7 == 3 or at > 0.9 * n else math.sin(at / 50),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("count", "columns"), [(900, 60), (9_000, 700), (21_000, 33)])
def test_a_thinned_curve_is_true_in_every_column_of_a_picture(shape, count, columns):
    """R17: the least and the greatest of each are those of all reports, best and last are exact."""
    values = [SHAPES[shape](at, count) for at in range(count)]
    steps = [at + (0 if at < count // 2 else 3 * count) for at in range(count)]  # half the picture is empty
    column = Column()
    for step, value in zip(steps, values, strict=True):
        column.add(step, value)
    curve = column.curve(2 * columns + 3)
    assert len(curve) <= 2 * columns + 3
    assert (curve.steps[0], curve.last_step) == (steps[0], steps[-1])
    assert repr(curve.values[-1]) == repr(values[-1])
    drawn, seen = list(curve), list(zip(steps, values, strict=True))
    bad = [step for step, value in drawn if math.isnan(value)]
    edges = [steps[0] + (steps[-1] - steps[0]) * at / columns for at in range(columns + 1)]
    edges[-1] += 1
    for left, right in pairwise(edges):
        here = [each[bisect_left(each, (left,)) : bisect_left(each, (right,))] for each in (drawn, seen)]
        mine, its = ([y for _, y in each if math.isfinite(y)] for each in here)
        assert (min(mine, default=0), max(mine, default=0)) == (min(its, default=0), max(its, default=0))
        none = [x for x, y in here[1] if math.isnan(y)]
        assert not none or mine or min(none) in bad
    last = max(at for at, value in enumerate(values) if math.isfinite(value))
    assert last + 1 == count or steps[last + 1] in bad, "from where on all are none"


def test_a_million_reports_are_within_one_percent_in_little_memory(monkeypatch):
    """A column that is too long keeps as much of what is old as of what is new."""
    monkeypatch.setattr(task_reports, "_MOST", 1 << 12)
    values = [SHAPES["decay with spikes"](at, 50_000) for at in range(50_000)]
    column = Column()
    for at, value in enumerate(values):
        column.add(at, value)
    assert len(column.steps) <= 1 << 12
    drawn = list(column.curve(203))
    assert (min(y for _, y in drawn), max(y for _, y in drawn)) == (min(values), max(values))
    within = 0.01 * (max(values) - min(values))
    for at in range(0, 50_000, 500):
        mine = [y for x, y in drawn if at <= x < at + 500]
        assert min(mine) == pytest.approx(min(values[at : at + 500]), abs=within)
        assert max(mine) == pytest.approx(max(values[at : at + 500]), abs=within)


def test_a_task_with_many_names_keeps_no_more_than_all_tasks_may(attempts, monkeypatch):
    monkeypatch.setattr(task_reports, "_MOST_KEPT", 1 << 12)
    monkeypatch.setattr(task_reports, "_LEAST", 64)
    names = [f"m{number}" for number in range(20)]
    write(attempts[0], [{"step": step, **{name: float(step) for name in names}} for step in range(3000)])
    found = reports_of(EXPERIMENT, attempts[:1])
    assert found.points <= 1 << 12
    assert (points(found, "m7")[0], points(found, "m7")[-1]) == ((0, 0), (2999, 2999))


@pytest.mark.parametrize("most", [2, 5, 6, 50, 499])
def test_thinning_keeps_the_ends_and_the_extremes(most):
    values = [float((index * 7919) % 1009) for index in range(10_000)]
    kept = thinned(range(10_000), values, most)
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    assert {0, 9_999} <= set(kept)
    if most > 5:
        assert {min(values), max(values)} <= {values[index] for index in kept}


def looked_at(place, looks):
    always = {"member": "worker-0", "cpu_seconds": 0, "peak_rss_bytes": 0}
    rows = [{**always, "time": at, "seconds": at - 1000, kind: size} for at, kind, size in looks]
    (place.directory / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("kind", ["reported_bytes", "log_bytes"])
def test_reports_are_between_the_looks_at_which_there_was_more_and_more(attempts, kind):
    place = attempts[0]
    file, line = {
        "reported_bytes": (place.metrics("worker-0"), '{"step": %3d, "loss": 0.5}\n'),
        "log_bytes": (place.log("worker-0"), "step %3d loss 0.5\n"),
    }[kind]
    size = len(line % 1)
    file.write_text("".join(line % step for step in range(1, 11)))
    looks = [(1001, 0), (1002, 0), (1004, 4 * size), (1005, 4 * size), (1010, 8 * size)]
    looked_at(place, [(at, kind, size) for at, size in looks])
    times = reports_of(EXPERIMENT, [place]).axes(99)["time"]
    assert list(times) == [
        (1, 0), (2, 0.5), (3, 1), (4, 1.5), (5, 3), (6, 4.5), (7, 6), (8, 7.5), (9, 9), (10, 10.5)
    ]  # fmt: skip


def test_without_looks_nothing_is_known_of_time_and_epochs_are_where_they_began(attempts):
    place = attempts[0]
    write(place, [{"step": step, "epoch": step // 4, "loss": 1.0} for step in range(1, 10)])
    looked_at(place, [(1001, "log_bytes", None)])
    assert reports_of(EXPERIMENT, [place]).axes(99) == {"epoch": Curve([(1, 0.0), (4, 1.0), (8, 2.0)])}


@pytest.mark.parametrize("sizes", [[5, 0, 0], [-5, -7, -7], [9, 3, 20]])
def test_sizes_that_do_not_grow_are_no_places_in_time(attempts, sizes):
    write(attempts[0], [{"step": step, "loss": 0.1} for step in (1, 2)])
    looks = [
        {"member": "worker-0", "time": 10.0 + number, "seconds": number, "cpu_seconds": 0,
         "peak_rss_bytes": 0, "reported_bytes": size}
        for number, size in enumerate(sizes)
    ]  # fmt: skip
    lines = [json.dumps(look) + "\n" for look in looks]
    (attempts[0].directory / "samples.jsonl").write_text("".join(lines))
    times = reports_of(EXPERIMENT, attempts[:1]).axes(10).get("time")
    assert times is None or all(map(math.isfinite, times.values))
