"""`halved`: for how many machines a place is asked."""

from __future__ import annotations

import pytest

from trainmaster.service.places.place import Place, halved


@pytest.mark.parametrize(
    ("most", "has", "gives_one", "halvings", "asked"),
    [
        (6, 6, True, 0, [6]),
        (6, 3, True, 1, [6, 3]),
        (6, 1, True, 2, [6, 3, 1]),
        (6, 0, True, 2, [6, 3, 1]),
        (6, 0, False, 0, [6]),  # it never has one: it is not asked again and again
        (1, 0, True, 0, [1]),
    ],
)
def test_it_is_asked_for_half_until_they_begin_in_time(
    most: int, has: int, gives_one: bool, halvings: int, asked: list[int]
) -> None:
    numbers = list[int]()

    def ask(times: int) -> Place:
        numbers.append(most >> times)
        return Place(
            "slurm", "machines" if numbers[-1] <= has else "", refusal="" if has >= numbers[-1] else "full"
        )

    found, seen = halved(ask, most, lambda: gives_one)
    assert (found, numbers) == (halvings, asked)
    assert len(seen) == len(asked)


def test_one_that_waits_is_asked_for_fewer_without_asking_for_one_first() -> None:
    """It has all of them, later: so it has one."""
    waits_s = [7200.0, 60.0]
    found, seen = halved(lambda times: Place("slurm", "m", wait_s=waits_s[times]), 4, pytest.fail)
    assert (found, [each.is_in_time for each in seen]) == (1, [False, True])
