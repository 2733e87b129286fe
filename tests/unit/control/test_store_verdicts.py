"""What trouble with a store means for a run, and that errors of all packages are of a kind."""

from __future__ import annotations

import pytest

from trainmaster.artifacts.manifest import DamagedArtifactError
from trainmaster.control.decide.store_verdicts import NoticedAt, StoreVerdict, verdict
from trainmaster.objects.errors import StoreTrouble, trouble_of
from trainmaster.volumes.errors import DamagedChunkError, SourceChangedError


def test_what_does_not_answer_is_waited_for_once_anything_has_worked() -> None:
    assert {moment: verdict(moment, StoreTrouble.UNREACHABLE) for moment in NoticedAt} == {
        NoticedAt.CHECK: StoreVerdict.WAIT,
        NoticedAt.FIRST: StoreVerdict.GIVE_UP,
        NoticedAt.LATER: StoreVerdict.WAIT,
        NoticedAt.NODE: StoreVerdict.WAIT,
    }


@pytest.mark.parametrize("trouble", sorted(set(StoreTrouble) - {StoreTrouble.UNREACHABLE}))
def test_nothing_else_is_waited_for_but_room_on_this_machine(trouble: StoreTrouble) -> None:
    is_full = trouble is StoreTrouble.FULL
    is_users = trouble in (StoreTrouble.REFUSED, StoreTrouble.MISSING)
    here = StoreVerdict.WAIT if is_full else StoreVerdict.USER_ERROR if is_users else StoreVerdict.GIVE_UP
    assert {moment: verdict(moment, trouble) for moment in NoticedAt} == {
        NoticedAt.CHECK: StoreVerdict.USER_ERROR,
        NoticedAt.FIRST: here,
        NoticedAt.LATER: here,
        NoticedAt.NODE: StoreVerdict.USER_ERROR if is_full else StoreVerdict.GIVE_UP,
    }


def test_what_is_damaged_or_changed_says_so_by_type() -> None:
    assert trouble_of(DamagedChunkError("x")) is StoreTrouble.DAMAGED
    assert trouble_of(DamagedArtifactError("x")) is StoreTrouble.DAMAGED
    assert trouble_of(SourceChangedError("x")) is StoreTrouble.CHANGED
