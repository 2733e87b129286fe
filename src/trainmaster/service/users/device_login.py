"""`DeviceLogins`: a command line gets a token when a person confirms its short code on a page (RFC 8628)."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any, Final

from trainmaster.db import Database
from trainmaster.db import accounts as rows
from trainmaster.service.users.access import Access, digest_of
from trainmaster.service.users.caller import Caller, TooOftenError, caller
from trainmaster.spec.errors import NotFoundError

EXPIRES_S: Final = 600.0
INTERVAL_S: Final = 2.0
#: What a command line needs; managing is done on pages.
_SCOPES: Final = frozenset(("read", "run"))
#: So many wait at most: who asks need not be known.
_MOST: Final = 200
#: Without vowels and what looks alike: no words, no mistakes.
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"


class DeviceLogins:
    """Those of a home.

    Args:
        database: of the home.
        access: of the home.
    """

    def __init__(self, database: Database, access: Access) -> None:
        self._database = database
        self._access = access

    def begin(self, client: str) -> dict[str, Any]:
        """``device_code`` (a secret), ``user_code`` (to be confirmed), ``expires_in_s``, ``interval_s``.

        Args:
            client: what the person is shown, such as the name of a machine.

        Raises:
            TooOftenError: too many wait.
        """
        now, secret = self._database.clock_s(), secrets.token_urlsafe(32)
        letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
        row = {
            "digest": digest_of(secret),
            "user_digest": digest_of(letters),
            "client": re.sub(r"[^A-Za-z0-9._-]+", "-", client)[:40].strip("-._") or "device",
            "expires_at": now + EXPIRES_S,
        }
        if not rows.add(self._database, row, _MOST, now):
            raise TooOftenError("too many logins wait to be confirmed", 60.0)
        code = f"{letters[:4]}-{letters[4:]}"
        return {"device_code": secret, "user_code": code, "expires_in_s": EXPIRES_S, "interval_s": INTERVAL_S}

    def client_of(self, user_code: str) -> str:
        """Who waits for a code to be confirmed.

        Raises:
            NotFoundError: it is unknown.
        """
        row = rows.by_user_code(self._database, _digest(user_code), self._database.clock_s())
        if row is None:
            raise _unknown()
        return str(row["client"])

    def confirm(self, who: Caller, user_code: str) -> None:
        """Let whoever shows the code act for a person, as far as it may itself.

        Raises:
            NotFoundError: no login waits for it.
        """
        who.need("read")
        kept = {
            "name": who.name,
            "team": who.team or None,
            "scopes": sorted(_SCOPES & who.scopes),
            "token": who.token,
            "account": who.account,
        }
        if not rows.confirm(self._database, _digest(user_code), json.dumps(kept), self._database.clock_s()):
            raise _unknown()

    def token(self, device_code: str) -> str | None:
        """The token, once; None before the code was confirmed.

        Raises:
            NotFoundError: the code is unknown, too old, or answered already.
        """
        digest = digest_of(device_code)
        row = rows.find(self._database, digest, self._database.clock_s())
        if row is None:
            raise NotFoundError("this login is over", "Begin again: `trainmaster login`.")
        if row["confirmed"] is None:
            return None
        if not rows.take(self._database, digest):
            raise NotFoundError("this login is over", "Begin again: `trainmaster login`.")
        kept = json.loads(row["confirmed"])
        maker = caller(kept["name"], kept["team"], kept["scopes"], kept["token"])
        name = f"{row['client']}-{secrets.token_hex(4)}"
        made = self._access.create_token(
            name, kept["scopes"], kept["team"], account=kept["account"], maker=maker
        )
        return str(made["token"])


def _digest(user_code: str) -> str:
    return digest_of(re.sub(r"[^A-Z]", "", user_code.upper()))


def _unknown() -> NotFoundError:
    return NotFoundError("nobody waits for this code", "It is good for ten minutes, once. Look at it again.")
