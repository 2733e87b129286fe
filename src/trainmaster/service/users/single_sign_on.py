"""`SingleSignOn`: users log in at an OpenID Connect provider; its groups say what they are in which team."""

from __future__ import annotations

import functools
import hmac
import logging
import re
import secrets
import ssl
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2

from trainmaster.dataclass import dataclass, field
from trainmaster.db import Database, access
from trainmaster.db import accounts as db
from trainmaster.service.users.access import digest_of
from trainmaster.service.users.accounts import new_account
from trainmaster.service.users.caller import NO_TEAM, ROLES, Caller, UnknownCallerError
from trainmaster.spec.errors import ProviderError, UsageError, fails_as, imports_of
from trainmaster.spec.private_files import require_private
from trainmaster.spec.units import parse_duration

#: Keys and tokens have some kilobytes.
MOST_BYTES: Final = 1 << 20
_MOST_S: Final = 30.0


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream, self._until_s = stream, time.monotonic() + _MOST_S

    def __iter__(self) -> Iterator[bytes]:
        left = MOST_BYTES
        for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"it answers with more than {MOST_BYTES:,} bytes")
            if time.monotonic() > self._until_s:
                raise httpx2.ReadTimeout(f"its answer takes longer than {_MOST_S:.0f} s")
            yield piece

    def close(self) -> None:
        self._stream.close()


def _bound(response: httpx2.Response) -> None:
    """A little that is packed may become anything."""
    if "content-encoding" in response.headers:
        raise httpx2.DecodingError("it packs what was asked for as it is")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = _Bounded(response.stream)


def bounded(timeout_s: float) -> dict[str, Any]:
    """Arguments of a client.

    Args:
        timeout_s: of each piece of an answer.
    """
    return {
        "timeout": timeout_s,
        "headers": {"accept-encoding": "identity"},
        "event_hooks": {"response": [_bound]},
        "follow_redirects": False,
        "verify": _trusted(),
    }


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The authorities of this machine, read once: for each client that takes 30 ms of a processor."""
    return httpx2.create_ssl_context()


#: Between the click and the answer of the provider.
SIGN_IN_S: Final = 600.0
#: What groups gave holds for so long without another login.
GROUPS_HOLD_S: Final = 7 * 86_400.0
#: What the provider tells of itself is asked so often.
_METADATA_S: Final = 3600.0
_TIMEOUT_S: Final = 10.0
#: Between its clock and ours, in seconds.
_LEEWAY_S: Final = 60
_LEAST: Final = "viewer"
#: So long OpenID Connect lets it be.
_MOST_SUBJECT: Final = 255
#: Logins that ask the provider at once: while it does not answer, threads of requests wait with them.
_AT_ONCE: Final = 8
_NEEDED: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_PLACES: Final = (*_NEEDED, "userinfo_endpoint")
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")
_log = logging.getLogger(__name__)


class SignInError(UnknownCallerError):
    """Logging in at the provider went wrong (HTTP 401)."""


@dataclass(frozen=True, slots=True)
class Group:
    """What the members of a group of the provider are here.

    Attributes:
        team: they are in; None for none.
        role: there; None for what the role claim says, the least if that is not known.
        is_admin: of the server.
    """

    team: str | None = None
    role: str | None = None
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class SignOnSettings:
    """What the administrator of a server says of its provider.

    Attributes:
        issuer: URL, exactly as the provider writes it.
        client_id: of this server, as registered there.
        client_secret: of this server, as registered there.
        groups: by their names there.
        groups_claim: has a user's groups.
        role_claim: has a role for groups that name none.
        name_claim: what a new user is called.
        groups_hold_s: what groups give somebody holds for so long; then he logs in anew.
    """

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    groups: Mapping[str, Group]
    groups_claim: str = "groups"
    role_claim: str = "role"
    name_claim: str = "preferred_username"
    groups_hold_s: float = GROUPS_HOLD_S

    @classmethod
    def read(cls, file: Path) -> SignOnSettings:
        """The settings in a TOML file.

        Raises:
            UsageError: it cannot be read, others can read it, or something in it is wrong.
        """
        try:
            with fails_as(f"{file} cannot be read", "--oidc names a TOML file."):
                require_private(file)
                text = file.read_text(encoding="utf-8")
            content = tomllib.loads(text)
            groups = {name: _group(name, of) for name, of in content.pop("groups", {}).items()}
            if (hold := content.pop("groups_hold", None)) is not None:
                content["groups_hold_s"] = parse_duration(str(hold))
            found = cls(**content, groups=groups)
        except (tomllib.TOMLDecodeError, TypeError, AttributeError, ValueError) as error:
            raise UsageError(f"{file}: {error}", "See docs/server/sign-on.md.") from error
        if not found.issuer.startswith("https://") and not re.match(
            r"http://(localhost|127\.)", found.issuer
        ):
            raise UsageError(
                f"{file}: issuer {found.issuer} is not https", "What it says could be anybody's."
            )
        return found

    def account_roles(self, claims: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
        """The roles by team of a user with these claims, and whether he is an admin.

        A group that is not named here gives nothing, a role that is not known the least.
        """
        said = claims.get(self.groups_claim)
        names = said if isinstance(said, list) else [said]
        groups = [self.groups[name] for name in names if isinstance(name, str) and name in self.groups]
        claimed = claims.get(self.role_claim)
        otherwise = claimed if isinstance(claimed, str) and claimed in ROLES else _LEAST
        order, roles = list(ROLES), dict[str, str]()
        for group in groups:
            if group.team is not None:
                role = group.role or otherwise
                roles[group.team] = max(roles.get(group.team, _LEAST), role, key=order.index)
        return roles, any(group.is_admin for group in groups)


def _group(name: str, content: Mapping[str, Any]) -> Group:
    group = Group(content.get("team"), content.get("role"), content.get("admin", False) is True)
    if set(content) - {"team", "role", "admin"} or (group.role is not None and group.role not in ROLES):
        raise ValueError(f"groups.{name}: write team, role ({', '.join(ROLES)}) or admin = true")
    return group


class SingleSignOn:
    """Logs users in by the authorization code flow, with PKCE and a nonce.

    Args:
        settings: of the provider.
        database: of the home; it keeps what is under way, so the answer may come to another server.

    Raises:
        MissingPartError: Authlib is not installed.
    """

    def __init__(self, settings: SignOnSettings, database: Database) -> None:
        with imports_of("server", "--oidc"):
            import authlib.integrations.httpx_client
        _ = authlib
        self.settings = settings
        self._database = database
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        self._metadata: tuple[float, dict[str, Any]] = (0.0, {})
        self._keys: tuple[float, dict[str, Any]] = (0.0, {})

    def begin(self, redirect_uri: str, wanted: str) -> tuple[str, str]:
        """Begin to log somebody in.

        Args:
            redirect_uri: of this server: where the provider sends the browser back.
            wanted: the page to go on with afterwards.

        Returns:
            Where to send the browser, and what its cookie is to say.
        """
        from authlib.common.security import generate_token

        cookie, nonce, verifier = secrets.token_urlsafe(32), generate_token(32), generate_token(64)
        with self._place(), self._client(redirect_uri) as client:
            url, state = client.create_authorization_url(
                self._about()["authorization_endpoint"], nonce=nonce, code_verifier=verifier
            )
        now = self._database.clock_s()
        row = {
            "digest": digest_of(cookie),
            "state": state,
            "nonce": nonce,
            "verifier": verifier,
            "wanted": wanted,
            "expires_at": now + SIGN_IN_S,
        }
        db.begin_sign_in(self._database, row, now)
        return url, cookie

    def finish(self, cookie: str, state: str, code: str, redirect_uri: str) -> tuple[Caller, str]:
        """Who has logged in at the provider, and the page that he wanted.

        Raises:
            SignInError: this browser did not begin that, it took too long, or the answer is not good.
            ProviderError: the provider does not answer.
        """
        row = db.take_sign_in(self._database, digest_of(cookie))
        is_late = row is None or row["expires_at"] <= self._database.clock_s()
        if row is None or is_late or not hmac.compare_digest(row["state"], state):
            raise SignInError("logging in was not begun in this browser, or took too long", "Log in again.")
        with self._place():
            claims = self._claims(row, code, redirect_uri)
        return self._user(claims), row["wanted"]

    # --- parts --------------------------------------------------------------------------------------

    @contextmanager
    def _place(self) -> Iterator[None]:
        """One of the few that ask the provider.

        Raises:
            ProviderError: all are taken.
        """
        if not self._places.acquire(blocking=False):
            raise ProviderError(
                f"{_AT_ONCE} others wait for {self.settings.issuer}, which answers slowly",
                "Try again in a minute.",
            )
        try:
            yield
        finally:
            self._places.release()

    def _claims(self, row: Mapping[Any, Any], code: str, redirect_uri: str) -> dict[str, Any]:
        import httpx2
        from authlib.integrations.base_client.errors import OAuthError
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        about = self._about()
        try:
            with self._client(redirect_uri) as client:
                token = client.fetch_token(
                    about["token_endpoint"],
                    code=code,
                    code_verifier=row["verifier"],
                    grant_type="authorization_code",
                )
                decoded = self._verified(str(token["id_token"]))
                claims = CodeIDToken(
                    decoded.claims,
                    decoded.header,
                    {
                        "iss": {"essential": True, "value": self.settings.issuer},
                        "aud": {"essential": True, "value": self.settings.client_id},
                    },
                    {
                        "nonce": row["nonce"],
                        "client_id": self.settings.client_id,
                        "access_token": token.get("access_token"),
                    },
                )
                claims.validate(leeway=_LEEWAY_S)
                found = dict(claims)
                if not isinstance(found["sub"], str) or not 0 < len(found["sub"]) <= _MOST_SUBJECT:
                    raise ValueError("sub is no name of anybody")
                if self.settings.groups_claim not in found and "userinfo_endpoint" in about:
                    answer = client.get(about["userinfo_endpoint"])
                    answer.raise_for_status()
                    more = _object(answer.json())
                    if more.get("sub") == found["sub"]:
                        found = {**more, **found}
                return found
        except httpx2.HTTPError as error:
            raise ProviderError(f"{self.settings.issuer} does not answer: {error}", "Try again.") from error
        except (
            OAuthError,
            JoseError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            _log.warning("a sign-in at %s was refused: %s", self.settings.issuer, error)
            raise SignInError("what the provider has answered is not good", "Log in again.") from error

    def _verified(self, id_token: str) -> Any:  # noqa: ANN401 - a token of joserfc
        """The token, if the provider has signed it; for a key that is not known they are asked again."""
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        def decoded(most_age_s: float) -> Any:  # noqa: ANN401
            keys = KeySet.import_key_set(self._jwks(most_age_s))
            return jwt.decode(id_token, keys, algorithms=list(_ALGORITHMS))

        try:
            return decoded(_METADATA_S)
        except (JoseError, ValueError):
            return decoded(0.0)

    def _user(self, claims: Mapping[str, Any]) -> Caller:
        issuer, subject = self.settings.issuer, str(claims["sub"])
        row: Mapping[Any, Any] | None = db.account_of(self._database, issuer, subject)
        if row is None:
            row = self._new_user(claims, issuer, subject)
        if row["disabled_at"] is not None:
            raise SignInError(f"{row['name']} may not use this server any more", "Ask its admin.")
        roles, is_admin = self.settings.account_roles(claims)
        known = {team: role for team, role in roles.items() if access.has_team(self._database, team)}
        for team in roles.keys() - known.keys():
            _log.warning("single sign-on names team %r, which is not there", team)
        name, until = row["name"], self._database.clock_s() + self.settings.groups_hold_s
        db.set_groups(self._database, name, known, is_admin=is_admin, until=until)
        _, roles = db.account_roles(self._database, name)
        team = next(iter(roles), NO_TEAM)
        return Caller(name, team, frozenset(), account=name, roles=roles, expires_at=until)

    def _new_user(self, claims: Mapping[str, Any], issuer: str, subject: str) -> Mapping[Any, Any]:
        """An account of its own: one of the same name that was there before is somebody else's."""
        wanted = str(claims.get(self.settings.name_claim) or claims.get("email") or subject)
        name = re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^A-Za-z0-9._@-]", "-", wanted))[:50] or "user"
        for number in range(1, 1000):
            found = {
                **new_account(name if number == 1 else f"{name}-{number}"),
                "issuer": issuer,
                "subject": subject,
            }
            if db.add_account(self._database, found):
                return {**found, "disabled_at": None}
        raise SignInError(f"there are too many users called {name}", "Ask the admin of this server.")

    def _client(self, redirect_uri: str) -> Any:  # noqa: ANN401 - Authlib has no types
        from authlib.integrations.httpx_client import OAuth2Client

        return OAuth2Client(
            self.settings.client_id,
            self.settings.client_secret,
            scope="openid profile email",
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            **bounded(_TIMEOUT_S),
        )

    def _about(self) -> dict[str, Any]:
        """What the provider tells of itself.

        Raises:
            ProviderError: it does not, or speaks for another one.
        """
        with self._lock:
            asked_at, found = self._metadata
            if not found or time.monotonic() - asked_at > _METADATA_S:
                url = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
                found = _fetched(url)
                if found.get("issuer") != self.settings.issuer:
                    raise ProviderError(
                        f"{url} is about {found.get('issuer')}", "Is `issuer` written as there?"
                    )
                self._check_places(found)
                self._metadata = (time.monotonic(), found)
            return found

    def _check_places(self, about: Mapping[str, Any]) -> None:
        """What a provider leads this server to is as safe as it is itself: nothing without TLS, inside.

        Raises:
            ProviderError: naming what is not.
        """
        begins = tuple({"https://", self.settings.issuer.partition("//")[0] + "//"})
        for name in _PLACES:
            url = about.get(name, "" if name in _NEEDED else "https://")
            if not isinstance(url, str) or not url.startswith(begins):
                raise ProviderError(
                    f"{self.settings.issuer}: {name} is {str(url)[:100]!r}, which is not https",
                    "Ask its admin.",
                )

    def _jwks(self, most_age_s: float) -> Any:  # noqa: ANN401 - JSON
        url = self._about()["jwks_uri"]
        with self._lock:
            asked_at, found = self._keys
            if not found or time.monotonic() - asked_at > most_age_s:
                found = _fetched(url)
                self._keys = (time.monotonic(), found)
            return found


def _fetched(url: str) -> dict[str, Any]:
    import httpx2

    try:
        with httpx2.Client(**bounded(_TIMEOUT_S)) as client:
            answer = client.get(url)
        answer.raise_for_status()
        return _object(answer.json())
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as error:
        raise ProviderError(f"{url} does not answer: {error}", "Is `issuer` right?") from error


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("it answers with what is no JSON object")
    return found
