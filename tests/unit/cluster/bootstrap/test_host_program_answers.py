"""What is heard of programs on hosts."""

from __future__ import annotations

from trainmaster.cluster.bootstrap.host_result import program_answer
from trainmaster.transport.base import Result


def test_the_last_word_says_what_went_wrong() -> None:
    assert program_answer(Result(1, "Welcome!\n@@error no room left: /x\n", "")) == "no room left: /x"
