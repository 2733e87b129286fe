"""Rolling back undoes moves one after the other, whatever was moved, rolled back and removed before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.service.models.registry import version_before


@given(st.lists(st.integers(1, 6) | st.just("rollback"), max_size=30), st.sets(st.integers(1, 6)))
def test_a_rollback_finds_what_was_meant_before(steps, removed):
    moves, stack = [], []  # the newest first; what is undone last comes first
    for step in steps:
        present = stack[-1] if stack else None
        if step == "rollback":
            target = version_before(moves, present, set(range(1, 7)))
            if target is not None:
                moves.insert(0, (present, target, "rollback"))
                assert target in {before for before, _, _ in moves}
                assert target != present
                stack.append(target)
        elif step != present:
            moves.insert(0, (present, step, "promote"))
            stack.append(step)
    if stack:
        there = set(range(1, 7)) - removed
        found = version_before(moves, stack[-1], there)
        assert found is None or found in there


def test_two_rollbacks_go_two_versions_back():
    moves = [(2, 3, "promote"), (1, 2, "promote"), (None, 1, "promote")]
    for present, expected in ((3, 2), (2, 1), (1, None)):
        assert version_before(moves, present, {1, 2, 3}) == expected
        moves.insert(0, (present, expected, "rollback"))
