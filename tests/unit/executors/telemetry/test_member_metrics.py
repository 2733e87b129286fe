"""What a member reports, by whichever way it does."""

from __future__ import annotations

import pytest

from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.spec.search import Search, TaskValue

KERAS = "Epoch {}/2\n100/100 - 1s - loss: {}\n"


@pytest.fixture
def member(tmp_path):
    return MemberMetrics(tmp_path, "worker-0")


def test_what_is_printed_counts_until_the_metrics_file_says_something(member, tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text("step 1 loss 0.5\nstep 2 lo")
    assert member.read() == ([{"step": 1, "loss": 0.5}], 25)
    member.path.write_text("no metrics\n")
    log.write_text(log.read_text() + "ss 0.4\n")
    assert list(member.rows()) == [{"step": 2, "loss": 0.4}]
    member.path.write_text('no metrics\n{"step": 3}\n{"step": 4}')
    log.write_text(log.read_text() + "step 3 loss 0.3\n")
    assert list(member.rows()) == [{"step": 3}]
    assert list(member.rows(final=True)) == [{"step": 4}]
    assert member.last == {"step": 4}
    assert not member.printed(b"step 9 loss 9\n", 99)


def test_the_last_line_counts_once_its_writer_is_gone(member, tmp_path):
    (tmp_path / "worker-0.log").write_text("step 1 loss 0.5")
    assert list(member.rows()) == []
    assert (member.finish(), member.finish(), member.last) == (
        [{"step": 1, "loss": 0.5}],
        [],
        {"step": 1, "loss": 0.5},
    )


def test_the_epoch_is_known_over_pieces_of_a_log_and_not_over_a_gap(member):
    first, second = (KERAS.format(*each).encode() for each in ((1, 0.5), (2, 0.4)))
    end = len(first) + len(second)
    assert member.printed(first, len(first)) == [{"epoch": 1, "step": 100, "loss": 0.5}]
    assert member.printed(second[:12], len(first) + 12) == []
    assert member.printed(second[12:], end) == [{"epoch": 2, "step": 200, "loss": 0.4}]
    line = b"100/100 - 1s - loss: 0.1\n"
    assert member.printed(line, end + 1000) == [{"step": 100, "loss": 0.1}]


def test_the_value_that_counts_in_a_search_is_the_last_of_its_metric(tmp_path):
    search = Search(metric="loss", goal="min", best="min")
    member = MemberMetrics(tmp_path, "worker-0", value=TaskValue(search))
    (tmp_path / "worker-0.log").write_text("step 1 loss 0.25\nstep 2 loss nan\nstep 3 loss 0.5\n")
    assert [row["step"] for row in member.rows()] == [1, 2, 3]
    assert member.last == {"step": 3, "loss": 0.25}


def test_only_the_end_of_a_log_is_read(member, tmp_path):
    (tmp_path / "worker-0.log").write_text("step 1 loss 0.5\n" * 1000 + "step 2 loss 0.4\n")
    member.skip(40)
    assert [row["step"] for row in member.rows()] == [1, 2]


def test_a_metrics_file_is_gone_on_with_at_any_line(member):
    member.path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    assert list(member.reported(9, 18)) == [([{"a": 2}], 18)]
    assert member.is_in_file
