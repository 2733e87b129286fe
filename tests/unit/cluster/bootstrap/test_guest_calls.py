"""What is heard of programs on nodes, also of those of earlier versions."""

from __future__ import annotations

import pytest

from trainmaster.cluster.bootstrap.guest_calls import guest_trouble, guest_words
from trainmaster.objects.errors import StoreTrouble
from trainmaster.transport.base import Result


@pytest.mark.parametrize(
    ("out", "trouble"),
    [
        ("@@want\n@@trouble full\n@@error no room left: /x\n", StoreTrouble.FULL),
        ("@@want\n@@error no room left: /x\n", StoreTrouble.OTHER),
        ("@@trouble of a later version\n@@error no room left: /x\n", StoreTrouble.OTHER),
    ],
)
def test_of_what_kind_it_is(out: str, trouble: StoreTrouble) -> None:
    result = Result(1, f"Welcome!\n{out}", "")
    assert guest_trouble(result) is trouble
    assert guest_words(result) == "no room left: /x"
