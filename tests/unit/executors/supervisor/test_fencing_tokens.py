"""Which client may still speak for a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_bytes import changed_json
from trainmaster.executors.supervisor.clients import FencingTokens


def fences(tmp_path, said=None) -> FencingTokens:
    return FencingTokens(str(tmp_path / "fences.json"), (said if said is not None else []).append)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.booleans())))
def test_nobody_with_a_smaller_token_is_admitted_whoever_is_killed_in_between(tmp_path_factory, calls):
    place = tmp_path_factory.mktemp("fences")
    found, newest = fences(place), {"a": 0, "b": 0}
    for run, token, is_killed in calls:
        if is_killed:
            found = fences(place)
        assert found.admit(run, token) == (token == 0 or token >= newest[run])
        newest[run] = max(newest[run], token)


def test_the_latest_thousand_runs_are_remembered(tmp_path):
    found = fences(tmp_path)
    for number in range(1100):
        found.admit(f"r-{number}", 2)
    found = fences(tmp_path)
    assert not found.admit("r-1099", 1)
    assert not found.admit("r-100", 1)
    assert len(found._tokens) == 1024


@pytest.mark.parametrize("text", ["", "{", "[]", '{"r": "2"}', '{"r": true}'])
def test_a_damaged_file_is_an_empty_one(tmp_path, text):
    said: list[str] = []
    (tmp_path / "fences.json").write_text(text)
    assert fences(tmp_path, said).admit("r", 1)
    assert f"{tmp_path}/fences.json is damaged" in said[0]


@given(data=changed_json({"r": 3, "s": 5}))
def test_whatever_is_in_the_file_the_next_driver_is_admitted(tmp_path_factory, data):
    place = tmp_path_factory.getbasetemp()
    (place / "fences.json").write_bytes(data)
    found = fences(place)
    assert found.admit("new", 1)
    assert found.admit("r", found._tokens.get("r", 0) + 1)
    assert fences(place)._tokens == found._tokens


def test_without_room_on_the_disk_it_is_kept_in_memory_and_said(tmp_path):
    said: list[str] = []
    found = fences(tmp_path, said)
    (tmp_path / "fences.json.new").mkdir()
    assert found.admit("r", 2)
    assert not found.admit("r", 1)
    assert "cannot remember" in said[0]
