"""Registry, storage, views and workflows of a server, as `protocol_parts` describes them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from trainmaster.api.administration import Limits, as_written
from trainmaster.api.remote.connection import RestConnection, quoted
from trainmaster.spec.errors import AccessError, NotFoundError, RecipeError, UsageError
from trainmaster.spec.model_reference import ANY_VERSION, ModelReference, checked_alias, checked_name

if TYPE_CHECKING:
    from trainmaster.providers.sent_settings import SentSettings
    from trainmaster.spec import Recipe


def sent_text(recipe: Recipe) -> dict[str, Any]:
    """What stands for a recipe in requests; a command that is configured here is for this machine."""
    sent = tuple(each for each in recipe.configured if not each[0].startswith("notify="))
    return {"recipe": recipe.model_copy(update={"configured": sent}).as_yaml(code=".")}


@contextmanager
def names_file_of(recipe: Recipe | None) -> Iterator[None]:
    """What a server finds wrong in a recipe has the name and the lines of the file that was read here.

    Raises:
        RecipeError: the server has refused it.
    """
    try:
        yield
    except RecipeError as refused:
        if recipe is None:
            raise
        if recipe.source_text == sent_text(recipe)["recipe"]:
            raise RecipeError(recipe.file, refused.mistakes) from None
        # What was sent is another text, with what is configured and changed: its lines are others.
        found = [(tuple(each.key_path.split(".")), UsageError(each.message)) for each in refused.mistakes]
        raise recipe.refused(found) from None


class _Part:
    """What a server is asked of one kind of things.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: RestConnection) -> None:
        self._to = connection


class RemoteApps(_Part):
    """See `AppsProtocol`."""

    def tensorboard(self, runs: Sequence[str]) -> dict[str, Any]:
        return self._open("tensorboard", list(runs))

    def notebook(self, run: str | None) -> dict[str, Any]:
        return self._open("notebook", [] if run is None else [run])

    def port(self, run: str, member: str | None, port: int) -> dict[str, Any]:
        return self._open("port", [run], member=member, port=port)

    def _open(self, kind: str, runs: list[str], **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        return dict(self._to.post("/apps", {"kind": kind, "runs": runs, **more}))

    def listed(self) -> list[dict[str, Any]]:
        return list(self._to.get("/apps")["apps"])

    def show(self, app: str) -> dict[str, Any]:
        return self._to.get(f"/apps/{quoted(app)}")

    def enter(self, app: str) -> str:
        return str(self._to.post(f"/apps/{quoted(app)}/ticket", {})["url"])

    def end(self, app: str) -> None:
        self._to.ask("DELETE", f"/apps/{quoted(app)}", {})

    def leave(self, app: str) -> None:
        """It goes on; browsers are led to it by the server."""


class RemoteServices(_Part):
    """See `ServicesProtocol`."""

    def listed(self) -> list[dict[str, Any]]:
        return list(self._to.get("/services")["services"])

    def show(self, name: str) -> dict[str, Any]:
        return self._to.get(f"/services/{quoted(name)}")

    def url(self, name: str, port: int = 0) -> str:
        return str(self.show(name)["url"])

    def listen(self, port: int) -> None:
        """The server listens."""


class RemoteImages(_Part):
    """See `ImagesProtocol`."""

    def listed(self, provider: str | None = None) -> list[dict[str, Any]]:
        return list(self._to.get("/images", provider=provider)["images"])

    def remove(self, image: str, provider: str | None = None) -> list[dict[str, Any]]:
        try:
            done = self._to.ask("DELETE", f"/images/{quote(image)}", {"provider": provider}, repeats=True)
        except NotFoundError:
            return []
        return list(done["removed"])


class RemoteRegistry(_Part):
    """Those of the team."""

    def models(self) -> list[dict[str, Any]]:
        return list(self._to.get("/registry")["models"])

    def show(self, name: str) -> dict[str, Any]:
        return dict(self._to.get(f"/registry/{quoted(name)}"))

    def version(self, text: str) -> dict[str, Any]:
        found = self.made_of(text)
        del found["lineage"]
        return found

    def made_of(self, text: str) -> dict[str, Any]:
        return dict(self._to.get(self._path(text)))

    def _path(self, text: str) -> str:
        wanted = ModelReference.parse(text)
        return f"/registry/{quoted(wanted.name)}/versions/{wanted.tail}"

    def register(
        self, model: str, name: str, alias: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        body = {"model": model, "name": checked_name(name), "tags": dict(tags or {})}
        body |= {} if alias is None else {"alias": checked_alias(alias)}
        return dict(self._to.post("/registry", body, repeats=True))

    def promote(self, text: str, alias: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        checked_alias(alias)
        wanted = ModelReference.parse(text)
        body: dict[str, Any] = {"version": wanted.tail} | (
            {} if expected == ANY_VERSION else {"expected": expected}
        )
        path = f"/registry/{quoted(wanted.name)}/aliases/{alias}"
        return dict(self._to.ask("PUT", path, {}, json.dumps(body).encode()))

    def rollback(self, text: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        alias = (wanted := ModelReference.parse(text)).must_alias
        # Sent twice it would go two versions back: what it means now is said, too.
        present = self.version(text)["version"] if expected == ANY_VERSION else expected
        path = f"/registry/{quoted(wanted.name)}/aliases/{alias}/rollback"
        return dict(self._to.post(path, {"expected": present}))

    def remove_alias(self, text: str) -> None:
        alias = (wanted := ModelReference.parse(text)).must_alias
        self._to.ask("DELETE", f"/registry/{quoted(wanted.name)}/aliases/{alias}", {})

    def remove(self, text: str) -> dict[str, Any]:
        return dict(self._to.ask("DELETE", self._path(text), {}))

    def describe(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        body = {"description": description, "tags": None if tags is None else dict(tags)}
        path = f"/registry/{quoted(name)}"
        return dict(self._to.ask("PATCH", path, {}, json.dumps(body).encode()))

    def diff(self, a: str, b: str) -> dict[str, Any]:
        return dict(self._to.get("/models-diff", a=a, b=b))


#: Runs of one request: it is to be answered in time.
_AT_ONCE: Final = 20


class RemoteStorage(_Part):
    """That of the team."""

    def remove_runs(
        self,
        runs: Sequence[str] = (),
        *,
        older_than_s: float | None = None,
        where: str = "",
        dry_run: bool = False,
    ) -> dict[str, Any]:
        some = [runs[first : first + _AT_ONCE] for first in range(0, len(runs), _AT_ONCE)] or [runs]
        found: dict[str, Any] = {"dry_run": dry_run, "bytes": 0, "runs": [], "shared": {}}
        for each in some:
            body = {"runs": list(each), "older_than_s": older_than_s, "where": where, "dry_run": dry_run}
            answer = self._to.post("/storage/remove-runs", body, repeats=True)
            found["bytes"] += answer["bytes"]
            found["runs"] += answer["runs"]
            for kind, size in answer["shared"].items():
                found["shared"][kind] = found["shared"].get(kind, 0) + size
        return found

    def prune(
        self, kinds: Sequence[str] = (), *, unused_s: float = 86_400.0, dry_run: bool = False
    ) -> dict[str, Any]:
        body = {"kinds": list(kinds), "unused_s": unused_s, "dry_run": dry_run}
        return dict(self._to.post("/storage/prune", body, repeats=True))

    def usage(self, limit: int | None = None) -> dict[str, Any]:
        return dict(self._to.get("/storage", limit=limit))


class RemoteViews(_Part):
    """One's own."""

    def listed(self) -> list[dict[str, Any]]:
        return list(self._to.get("/views")["views"])

    def put(self, name: str, query: str) -> str:
        body = json.dumps({"query": query}).encode()
        return str(self._to.ask("PUT", f"/views/{quoted(name)}", {}, body, repeats=True)["query"])

    def remove(self, name: str) -> None:
        self._to.ask("DELETE", f"/views/{quoted(name)}", {})


class RemoteWorkflows(_Part):
    """Those of the team."""

    def listed(self) -> list[dict[str, Any]]:
        return list(self._to.get("/workflows")["workflows"])

    def show(self, name: str) -> dict[str, Any]:
        return dict(self._to.get(f"/workflows/{quoted(name)}"))

    def register(
        self, plan: str, *, starts_now: bool = False, keep_s: float = 0.0, queue: bool = False
    ) -> dict[str, Any]:
        body = {"plan": plan, "now": starts_now, "keep_s": keep_s, "wait": queue}
        return dict(self._to.post("/workflows", body))

    def pause(self, name: str) -> dict[str, Any]:
        return dict(self._to.post(f"/workflows/{quoted(name)}/pause", repeats=True))

    def resume(self, name: str, *, take_over: bool = False) -> dict[str, Any]:
        query = {"take_over": "true"} if take_over else {}
        return dict(self._to.ask("POST", f"/workflows/{quoted(name)}/resume", query, repeats=True))

    def trigger(self, name: str) -> dict[str, Any]:
        return dict(self._to.post(f"/workflows/{quoted(name)}/trigger", key=secrets.token_hex(8)))

    def remove(self, name: str) -> None:
        self._to.ask("DELETE", f"/workflows/{quoted(name)}", {})

    def rotate(self, name: str) -> dict[str, Any]:
        return dict(self._to.post(f"/workflows/{quoted(name)}/secret"))


class RemoteAdministration(_Part):
    """Of a server, as its caller may; fulfils `AdministrationProtocol` and is described there."""

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

    def examine_places(self, places: Sequence[str], recipe: Recipe | None = None) -> list[dict[str, Any]]:
        body = {"places": list(places), **(sent_text(recipe) if recipe else {})}
        with names_file_of(recipe):
            return list(self._to.post("/doctor", body, repeats=True)["findings"])

    def teams(self) -> list[dict[str, Any]]:
        return list(self._to.get("/teams")["teams"])

    def budget(self, team: str | None) -> dict[str, Any]:
        wanted = team or self._to.get("/me")["team"]
        found = self._to.get("/budgets")["budgets"]
        for each in found:
            if each["team"] == wanted:
                return dict(each)
        seen = ", ".join(each["team"] for each in found if each["team"])
        raise NotFoundError(
            f"there is no team {wanted!r}", f"This token sees the budget of: {seen or 'none'}."
        )

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

    def put_team_login(
        self, team: str, provider: str, login: SentSettings, *, is_same_account: bool = False
    ) -> None:
        sent = {"files": dict(login.files), "variables": dict(login.environ)}
        body = {**sent, "is_same_account": is_same_account}
        self._done("PUT", f"/team-logins/{quoted(provider)}", body, team)

    def team_logins(self, team: str) -> list[dict[str, Any]]:
        return list(self._to.get("/team-logins", team=team)["logins"])

    def remove_team_login(self, team: str, provider: str) -> None:
        self._done("DELETE", f"/team-logins/{quoted(provider)}", team=team)

    def _done(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, team: str | None = None
    ) -> dict[str, Any]:
        sent = None if body is None else json.dumps(body).encode()
        return dict(self._to.ask(method, path, {"team": team}, sent) or {})
