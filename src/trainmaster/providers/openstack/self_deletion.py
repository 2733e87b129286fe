"""`SelfDeletion`: application credentials by which servers delete themselves, and can do nothing else.

Each server has one of its own, called after its cluster and its id. It can send one request: ``DELETE`` of
this very server. Keystone has such access rules from Train (2019) on; a service whose middleware does not
know what kind of service it is lets none of these credentials in.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.providers.openstack.client import VOLUMES, OpenstackClient, RefusedError
from trainmaster.spec.errors import UsageError
from trainmaster.transport.http_calls import gone_is_fine

#: After so long a server can only switch itself off. Credentials cannot be made to last longer later.
LASTS: Final = timedelta(days=90)
_TRIAL_LASTS: Final = timedelta(hours=1)
#: Another home of this user, which shares rules, may make or remove them at the same time.
_TRIES: Final = 4
#: No server has this id: who may delete it is told that it is not there.
_NOBODY: Final = "00000000-0000-0000-0000-000000000000"
#: What a driver sends, by service: below its address, where `*` stands for one part of a path. Nova sends its
#: token on for ports, images and volumes, and many a site has Nova show none of its own beside it.
DRIVES_WITH: Final = {
    "compute": (
        "GET /limits", "GET /flavors/detail", "GET /servers/*", "POST /servers", "DELETE /servers/*",
        "POST /servers/*/metadata", "POST /servers/*/action", "POST /os-keypairs", "DELETE /os-keypairs/*",
    ),
    "network": (
        "GET /*", "POST /security-groups", "DELETE /security-groups/*", "POST /security-group-rules",
        "POST /floatingips", "DELETE /floatingips/*",
        "GET /*/*", "POST /ports", "PUT /ports/*", "DELETE /ports/*",
    ),
    "image": ("GET /images", "GET /images/*", "GET /images/*/file", "GET /schemas/*"),
    **dict.fromkeys(VOLUMES, (
        "GET /*", "GET /*/*", "POST /volumes", "DELETE /volumes/*", "POST /volumes/*/action",
        "POST /attachments", "PUT /attachments/*", "POST /attachments/*/action", "DELETE /attachments/*",
    )),
    "identity": (
        "GET {user}/application_credentials", "POST {user}/application_credentials",
        "DELETE {user}/application_credentials/*", "GET {user}/access_rules", "DELETE {user}/access_rules/*",
    ),
}  # fmt: skip
#: By which it is seen whether a service takes a credential with rules.
_LOOKS: Final = {
    "compute": "/limits", "network": "/networks", "image": "/images", "identity": "{user}/access_rules",
    **dict.fromkeys(VOLUMES, "/limits"),
}  # fmt: skip
_ASK: Final = "Ask your site for application credentials with access rules"


class SelfDeletion:
    """Threads may share it.

    Args:
        client: of the project.
    """

    def __init__(self, client: OpenstackClient) -> None:
        self._client = client

    def check(self) -> None:
        """Refuse where no such credential can be made, as far as it can be seen without making one.

        Raises:
            UsageError: why not, and what to do.
            RefusedError: it does not say now.
        """
        if not self.may_make():
            raise UsageError(
                "the login is an application credential that may make no others",
                "Make it with `--unrestricted`, or log in with a password",
            )
        with _refused_as("Keystone lets no access rules be made", _ASK):
            self._client.get("identity", f"{self._user}/access_rules")

    def try_out(self, prefix: str) -> None:
        """Make one for a server that nobody has, use it, and remove it.

        Args:
            prefix: what everything of the home is called first.

        Raises:
            UsageError: why it does not work, and what to do.
            RefusedError: it does not say now.
        """
        with _refused_as("Keystone makes no such credential", _ASK):
            made = self._make_ending(f"{prefix}trial-{secrets.token_hex(4)}", _NOBODY, _TRIAL_LASTS)
        hint = "Ask your site to set `service_type = compute` in Nova's [keystone_authtoken]"
        try:
            with _refused_as("Nova does not take credentials with access rules", hint), gone_is_fine():
                self._client.by(made).call("DELETE", "compute", f"/servers/{_NOBODY}")
        finally:
            self._remove(made)

    def program(self, name: str, server: str) -> str:
        """For the Python of a server: it deletes that server. What it had before for this is of no use then.

        Args:
            name: of its credential.
            server: its id.
        """
        self.remove(name.__eq__)
        made, authorities = self._make_ending(name, server, LASTS), self._client.login.authorities
        values = (
            self._client.address("identity"),
            made["id"],
            made["secret"],
            f"{self._client.address('compute')}/servers/{server}",
            Path(authorities).read_text() if authorities else "",
        )
        source = (resources.files("trainmaster.providers.openstack") / "delete_itself.py").read_text("utf-8")
        call = f"delete_itself({', '.join(map(repr, values))})"
        # No text for a shell's `<<`: some write that to a disk first, which may be full.
        return f"#!/usr/bin/env python3\n{source}\n\nif '--check' in sys.argv:\n    sys.exit()\n{call}\n"

    def may_make(self) -> bool:
        """Whether this login may make credentials, as far as it says."""
        return not self._client.said.get("application_credential", {}).get("restricted")

    def make_login(self, name: str) -> dict[str, Any]:
        """A credential for what drives a run; its id and its secret.

        It may send what `DRIVES_WITH` lists, where all services take such credentials; else all that this
        login may.

        Args:
            name: its own; one that had it before is of no use then.

        Raises:
            UsageError: Keystone makes none.
            RefusedError: it does not say now.
        """
        self.remove(name.__eq__)
        services = [each for each in DRIVES_WITH if each not in VOLUMES or self._is_there(each)]
        rules = [
            rule
            for service in services
            for rule in self._rules(service, [each.format(user=self._user) for each in DRIVES_WITH[service]])
        ]
        with _refused_as("Keystone makes no application credential", _ASK):
            with suppress(UsageError):
                made = self._make(name, LASTS, unrestricted=True, access_rules=rules)
                # Older ones ignore what they do not know.
                if not made.get("access_rules") or self._is_taken(made, services):
                    return made
            return self._make(name, LASTS, unrestricted=True)

    def _is_there(self, service: str) -> bool:
        with suppress(UsageError):
            return bool(self._client.address(service))
        return False

    def _is_taken(self, made: dict[str, Any], services: Collection[str]) -> bool:
        """Whether each service lets a credential with rules in; else it is removed.

        Raises:
            RefusedError: one does not say now.
        """
        client, is_taken = self._client.by(made), False
        try:
            with suppress(UsageError), _refused_as("it takes none", ""):  # what is no answer yet is raised
                for service in services:
                    client.get(service, _LOOKS[service].format(user=self._user))
                is_taken = True
        finally:
            if not is_taken:
                self._remove(made)
        return is_taken

    def _rules(self, service: str, requests: Collection[str]) -> list[dict[str, str]]:
        """Access rules for requests. A service may see a whole path, or what comes after its place there."""
        path = urlsplit(self._client.address(service)).path
        versioned = re.search(r"/v\d.*", path)
        befores = sorted({path, versioned[0] if versioned else path})
        return [
            {"service": service, "method": method, "path": before + below}
            for method, _, below in (each.partition(" ") for each in requests)
            for before in befores
        ]

    def remove(self, is_wanted_no_more: Callable[[str], bool]) -> None:
        """Remove credentials by their names, and those that are over, with their rules.

        The one that asks for it stays.
        """
        own = self._client.said.get("application_credential", {}).get("id")
        now = datetime.now(UTC).isoformat()
        for each in self._all():
            is_over = str(each.get("expires_at") or "9") < now
            if each["id"] != own and (is_over or is_wanted_no_more(str(each["name"]))):
                self._remove(each)

    @property
    def _user(self) -> str:
        return f"/users/{self._client.said['user']['id']}"

    @property
    def _path(self) -> str:
        return f"{self._user}/application_credentials"

    @property
    def _about(self) -> str:
        """What is written on those of this Nova: another region or project of the user's has others."""
        return f"trainmaster made it for a server of {self._client.address('compute')}"

    def _all(self) -> Collection[dict[str, Any]]:
        project = self._client.said.get("project", {}).get("id")
        with suppress(RefusedError, UsageError):  # then there are none
            return [
                each
                for each in self._client.listed("identity", self._path)
                if each.get("description") == self._about and each.get("project_id") in (None, project)
            ]
        return ()

    def _make_ending(self, name: str, server: str, lasts: timedelta) -> dict[str, Any]:
        rules = self._rules("compute", [f"DELETE /servers/{server}"])
        made = self._make(name, lasts, unrestricted=False, access_rules=rules)
        if not made.get("access_rules"):  # older ones ignore what they do not know: it could do anything
            self._remove(made)
            raise UsageError("it knows no access rules")
        return made

    def _make(self, name: str, lasts: timedelta, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        asked: dict[str, Any] = {
            "name": name,
            "description": self._about,
            "expires_at": (datetime.now(UTC) + lasts).strftime("%Y-%m-%dT%H:%M:%S.%f"),
            **more,
        }
        if "member" in self._client.roles():
            asked["roles"] = [{"name": "member"}]
        for left in reversed(range(_TRIES)):
            try:
                made = self._client.call("POST", "identity", self._path, {"application_credential": asked})
                return dict(made["application_credential"])
            except RefusedError as refused:
                if refused.status not in (409, 500) or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _remove(self, made: dict[str, Any]) -> None:
        # A login that may not: what is left is of no use without its server, and ends by itself.
        with gone_is_fine(), suppress(UsageError):
            self._client.call("DELETE", "identity", f"{self._path}/{made['id']}")
        for rule in made.get("access_rules") or ():
            # Another credential has it, too; or Keystone fails, and the others go nevertheless.
            with suppress(RefusedError, UsageError):
                self._client.call("DELETE", "identity", f"{self._user}/access_rules/{rule['id']}")


@contextmanager
def _refused_as(what: str, hint: str) -> Iterator[None]:
    """A refusal says what it means. What is no answer yet stays what it is: it is asked again."""
    try:
        yield
    except (RefusedError, UsageError) as error:
        if isinstance(error, RefusedError) and (error.status >= 500 or error.status in (409, 429)):
            raise
        words = error.words if isinstance(error, RefusedError) else Exception.__str__(error)
        raise UsageError(f"{what} ({words})", hint) from None
