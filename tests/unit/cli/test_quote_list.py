"""`quote --list` names the team of each quote to who sees those of several."""

from types import SimpleNamespace

import pytest

from command_line import invoke


@pytest.mark.parametrize(
    ("teams", "is_told"), [(["red", "blue", None], True), (["red", "red", "red"], False)]
)
def test_who_sees_quotes_of_several_teams_is_told_whose_each_is(tmp_path, monkeypatch, teams, is_told):
    quotes = [
        {"id": f"q-{team}", "name": "digits", "asked_by": "ann", "team": team, "created_at": 1.0,
         "state": "RUNNING", "error": None}
        for team in teams
    ]  # fmt: skip
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    client = SimpleNamespace(asked_quotes=lambda: quotes)
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: client)
    head, first, *_ = invoke("--local", "quote", "--list").stdout.splitlines()
    assert head.split()[:4] == ["quote", "recipe", "by", "team" if is_told else "asked"]
    assert ("  red  " in first) == is_told
