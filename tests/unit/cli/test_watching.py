from collections import Counter
from types import SimpleNamespace

from trainmaster.cli.watching import progress_lines
from trainmaster.control.board import tally
from trainmaster.spec.states import EndReason, State


def test_tasks_that_failed_are_not_done():
    ended = Counter({EndReason.SUCCEEDED: 1, EndReason.USER_ERROR: 1})
    counts = tally(4, ended, running=2, rest_reason=None, created=4)
    sweep = SimpleNamespace(state=State.RUNNING, total=4, ended=ended, tally=lambda: counts)
    board = SimpleNamespace(experiments={"sweep": sweep})
    assert list(progress_lines(board, {})) == ["sweep: 1/4 tasks done, 2 running, 1 failed"]
