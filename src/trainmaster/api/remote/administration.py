"""`RemoteAdministration`: who may use a server, and what may be spent there, over REST."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.api.administration import Limits, as_written
from trainmaster.api.remote.connection import RestConnection, quoted
from trainmaster.spec.errors import AccessError, NotFoundError, UsageError


class RemoteAdministration:
    """Of a server, as its caller may; fulfils `AdministrationProtocol` and is described there.

    Args:
        connection: to it.
    """

    def __init__(self, connection: RestConnection) -> None:
        self._to = connection

    def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        team: str | None,
        account: str | None,
        days: float,
        at_most_usd: float | None = None,
    ) -> dict[str, Any]:
        body = {"name": name, "scopes": list(scopes), "team": team, "account": account, "days": days}
        body |= {} if at_most_usd is None else {"at_most_usd": at_most_usd}
        return self._done("POST", "/tokens", body)

    def revoke_token(self, name: str) -> list[str]:
        return list(self._done("DELETE", f"/tokens/{quoted(name)}")["paused_workflows"])

    def tokens(self) -> list[dict[str, Any]]:
        return list(self._to.get("/tokens")["tokens"])

    def make_team(self, name: str, limits: Limits) -> dict[str, Any]:
        return self._done("PUT", "/teams", {"team": name, **as_written(limits)})

    def teams(self) -> list[dict[str, Any]]:
        return list(self._to.get("/teams")["teams"])

    def budget(self, team: str | None) -> dict[str, Any]:
        wanted = team or self._to.get("/me")["team"]
        for each in self._to.get("/budgets")["budgets"]:
            if each["team"] == wanted:
                return dict(each)
        raise NotFoundError(f"there is no team {wanted!r}", "`trainmaster team list` shows the teams.")

    def set_budget(self, team: str | None, limits: Limits) -> dict[str, Any]:
        wanted = team or self._to.get("/me")["team"]
        return self._done("PUT", "/budgets", {"team": wanted, **as_written(limits)})

    def queue(self) -> list[dict[str, Any]]:
        return list(self._to.get("/queue")["queue"])

    def create_user(self, name: str, *, is_admin: bool) -> dict[str, Any]:
        return self._done("POST", "/users", {"name": name, "is_admin": is_admin})

    def users(self) -> list[dict[str, Any]]:
        return list(self._to.get("/users", services=True)["users"])

    def disable_user(self, name: str, *, is_disabled: bool) -> None:
        self._done("PATCH", f"/users/{quoted(name)}", {"is_disabled": is_disabled})

    def add_member(self, team: str, user: str, role: str) -> None:
        try:
            self._set_member(team, user, role)
        except NotFoundError as nobody:
            try:
                self.create_user(user, is_admin=False)
            except (AccessError, UsageError):  # only admins make users; or it is the team that is not there
                raise nobody from None
            self._set_member(team, user, role)

    def _set_member(self, team: str, user: str, role: str) -> None:
        self._done("PUT", f"/teams/{quoted(team)}/members/{quoted(user)}", {"role": role})

    def remove_member(self, team: str, user: str) -> None:
        self._done("DELETE", f"/teams/{quoted(team)}/members/{quoted(user)}")

    def members(self, team: str) -> list[dict[str, Any]]:
        return list(self._to.get(f"/teams/{quoted(team)}/members")["members"])

    def invite(self, team: str, role: str, days: float) -> dict[str, Any]:
        return self._done("POST", "/invites", {"role": role, "days": days}, team)

    def put_secret(self, team: str, name: str, value: str) -> None:
        self._done("PUT", f"/secrets/{quoted(name)}", {"value": value}, team)

    def secrets(self, team: str) -> list[dict[str, Any]]:
        return list(self._to.get("/secrets", team=team)["secrets"])

    def remove_secret(self, team: str, name: str) -> None:
        self._done("DELETE", f"/secrets/{quoted(name)}", team=team)

    def _done(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, team: str | None = None
    ) -> dict[str, Any]:
        sent = None if body is None else json.dumps(body).encode()
        return dict(self._to.ask(method, path, {"team": team}, sent) or {})
