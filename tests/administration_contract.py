"""What all administrations of a server must keep: inherit `AdministrationContract`."""

from __future__ import annotations

import json
import math

import pytest

from trainmaster.api.administration import AdministrationProtocol
from trainmaster.spec.errors import NotFoundError, TrainmasterError


class AdministrationContract:
    """Inherited by the tests of each `AdministrationProtocol`, of a home without accounts.

    What one does, `HomeAdministration` sees, and the objects are the same to the byte.
    """

    @pytest.fixture
    def ours(self, administration: AdministrationProtocol) -> AdministrationProtocol:
        """The one that is tested; your tests give ``administration`` and ``at_home``."""
        return administration

    def test_teams_and_members(self, ours: AdministrationProtocol, at_home: AdministrationProtocol) -> None:
        """They are made, changed and seen."""
        made = ours.make_team("red", {"monthly_usd": 50.0, "runs_at_once": 2, "usd_per_hour": None})
        assert (made["team"], made["monthly_usd"], made["runs_at_once"]) == ("red", 50.0, 2)
        ours.make_team("red", {"monthly_usd": math.inf, "runs_at_once": None, "usd_per_hour": 3.0})
        (red,) = ours.teams()
        assert (red["monthly_usd"], red["runs_at_once"], red["usd_per_hour"]) == (None, 2, 3.0)
        assert ours.teams() == at_home.teams()
        ours.add_member("red", "ann", "member")
        ours.add_member("red", "ann", "manager")
        assert [(each["name"], each["role"]) for each in ours.members("red")] == [("ann", "manager")]
        assert ours.members("red") == at_home.members("red")
        ours.create_user("bob", is_admin=True)
        ours.disable_user("bob", is_disabled=True)
        assert {each["name"]: each["disabled_at"] is not None for each in ours.users()} == {
            "ann": False,
            "bob": True,
        }
        ours.disable_user("bob", is_disabled=False)
        assert json.dumps(ours.users()) == json.dumps(at_home.users())
        invited = ours.invite("red", "viewer", 2.0)
        assert (invited["team"], invited["role"]) == ("red", "viewer")
        assert invited["path"].startswith("/")
        ours.remove_member("red", "ann")
        assert ours.members("red") == []
        with pytest.raises(NotFoundError):
            ours.add_member("blue", "ann", "member")
        with pytest.raises(NotFoundError):
            ours.remove_member("red", "ann")
        with pytest.raises(NotFoundError):
            ours.disable_user("carl", is_disabled=True)

    def test_tokens(self, ours: AdministrationProtocol, at_home: AdministrationProtocol) -> None:
        """They are made, listed without what they are, and revoked."""
        ours.make_team("red", {})
        ours.add_member("red", "ann", "member")
        before = len(ours.tokens())
        made = ours.create_token("ci", ["read", "run"], "red", "ann", 1.0)
        assert made["token"].startswith("tm_")
        assert (made["team"], made["account"], made["scopes"]) == ("red", "ann", ["read", "run"])
        assert ours.tokens() == at_home.tokens()
        assert len(ours.tokens()) == before + 1
        assert made["token"] not in json.dumps(ours.tokens())
        ours.revoke_token("ci")
        assert [each["name"] for each in ours.tokens() if each["revoked_at"]] == ["ci"]
        paid = ours.create_token("paid", ["run"], None, None, 1.0, 20.0)
        assert paid["at_most_usd"] == 20.0
        with pytest.raises(TrainmasterError, match="wallet"):
            ours.create_token("too-much", ["admin"], None, None, 1.0, 20.0)
        for name, scope in (("ci", "read"), ("other", "fly")):
            with pytest.raises(TrainmasterError):
                ours.create_token(name, [scope], None, None, 1.0)

    def test_budgets_and_the_queue(
        self, ours: AdministrationProtocol, at_home: AdministrationProtocol
    ) -> None:
        """Limits are set, taken away and seen: of a team, of the owner, of all together."""
        ours.make_team("red", {})
        for team in ("red", "*", None):
            assert ours.set_budget(team, {"monthly_usd": 20.0})["monthly_usd"] == 20.0
            assert ours.budget(team) == at_home.budget(team)
            assert ours.set_budget(team, {"monthly_usd": math.inf})["monthly_usd"] is None
        assert ours.queue() == at_home.queue() == []
        with pytest.raises(NotFoundError, match="blue"):
            ours.set_budget("blue", {"monthly_usd": 1.0})

    def test_secrets(self, ours: AdministrationProtocol, at_home: AdministrationProtocol) -> None:
        """They are written and named, and never shown."""
        ours.make_team("red", {})
        ours.put_secret("red", "KEY", "hidden value")
        assert [each["name"] for each in ours.secrets("red")] == ["KEY"]
        assert ours.secrets("red") == at_home.secrets("red")
        assert "hidden" not in json.dumps(ours.secrets("red"))
        ours.remove_secret("red", "KEY")
        assert ours.secrets("red") == []
        with pytest.raises(NotFoundError):
            ours.remove_secret("red", "KEY")
