"""What all routes share: the server's parts, who asks, and what errors become."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection

from trainmaster.api.mcp.at_server import Assistants, OwnAddress
from trainmaster.api.rest.limits import (
    LOGINS_BURST,
    STRANGERS_BURST,
    STRANGERS_PER_S,
    TESTS_BURST,
    TESTS_PER_S,
    LoopLag,
    OpenStream,
    SlowCalls,
    Streams,
    Waits,
)
from trainmaster.api.rest.versions import ClientVersionError
from trainmaster.api.server_names import ServerNames
from trainmaster.dataclass import dataclass, field
from trainmaster.db.registry_rows import AliasMovedError, ModelInUseError
from trainmaster.db.workflow_starts import StartTakenError
from trainmaster.objects.errors import FullStoreError
from trainmaster.service.apps.app_hosts import AppHosts
from trainmaster.service.driving.drivers import Drivers, RunMonitor
from trainmaster.service.driving.submissions import KeyUsedError, Submissions
from trainmaster.service.notifications.webhooks import Webhooks
from trainmaster.service.places.answers import PlaceAnswers
from trainmaster.service.places.place import asked_place
from trainmaster.service.quotes.quote_requests import QuoteRequests, TooManyError
from trainmaster.service.retention import Retention
from trainmaster.service.runs.member_connections import MemberConnections
from trainmaster.service.sinks.feeding import SinkFeeder
from trainmaster.service.sinks.sink_thread import SinkThread
from trainmaster.service.storage.storage import KeptCount
from trainmaster.service.teams.team_budget import OverBudgetError
from trainmaster.service.teams.team_logins import TeamLogins
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.teams.team_secrets import TeamSecrets
from trainmaster.service.uploads.code_uploads import TeamQuotaError
from trainmaster.service.uploads.uploads import TooMuchError, UploadConflictError, Uploads
from trainmaster.service.users.access import Access, digest_of
from trainmaster.service.users.accounts import Accounts
from trainmaster.service.users.audit_feed import AuditFeed
from trainmaster.service.users.caller import (
    Caller,
    Credential,
    ForbiddenError,
    KnownCallers,
    TooOftenError,
    UnknownCallerError,
)
from trainmaster.service.users.device_login import DeviceLogins
from trainmaster.service.users.rates import Rates
from trainmaster.service.users.single_sign_on import SingleSignOn
from trainmaster.service.workflows.triggers import Triggers
from trainmaster.service.workflows.workflows import Workflows
from trainmaster.spec.errors import (
    FullDiskError,
    LeaseLostError,
    MissingPartError,
    NotFoundError,
    ProviderError,
    PublishError,
    RecipeError,
    StoreError,
    TrainmasterError,
    UsageError,
)
from trainmaster.spec.processor_limit import TooMuchWorkError

if TYPE_CHECKING:
    from trainmaster.api.proxy.services import ServiceProxy
    from trainmaster.api.rest.hubs import Hubs
    from trainmaster.service import Service
    from trainmaster.service.uploads.upload_finishing import UploadFinishing

#: Header of a request: for which of the caller's teams it is.
TEAM: Final = "trainmaster-team"
PROBLEM: Final = "application/problem+json"
#: HTTP status of each error, the first that fits.
_STATUS: Final[tuple[tuple[type[TrainmasterError], int], ...]] = (
    (UnknownCallerError, 401),
    (ForbiddenError, 403),
    (NotFoundError, 404),
    (KeyUsedError, 409),
    (TooManyError, 429),
    (ClientVersionError, 426),
    (MissingPartError, 501),
    (TooOftenError, 429),
    (OverBudgetError, 409),
    (UploadConflictError, 409),
    (AliasMovedError, 409),
    (ModelInUseError, 409),
    (StartTakenError, 409),
    (TooMuchError, 413),
    (TooMuchWorkError, 422),
    (TeamQuotaError, 507),
    (FullStoreError, 507),
    (FullDiskError, 507),
    (LeaseLostError, 409),
    (UsageError, 422),
    (StoreError, 503),
    (ProviderError, 502),
    (PublishError, 502),
)
_RETRY_AFTER_S: Final = 5
_ERRORS: Final = TrainmasterError.__module__
_Dependency = TypeVar("_Dependency", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")
_SCOPES: Final = ("", "infer", "read", "run", "manage", "admin")
#: What finds the caller, and the scope that it asks for.
_FINDING: Final[dict[Callable[..., Any], str]] = {}


@dataclass(frozen=True)
class ServerState:
    """The parts of a server.

    Attributes:
        service: of the home.
        access: teams, tokens, sessions.
        submissions: takes runs.
        quotes: takes quotes and plans.
        drivers: drive them.
        uploads: what is sent in pieces.
        finishing: makes something of that.
        hubs: tell live what happens.
        streams: who follows what.
        tunnels: who has which connections to members.
        transfers: who sends or gets which files, and waits for which answers.
        members: connections to them.
        lag: of the loop of all requests.
        environ: of the processes that drive runs.
        cookie: name of the session's cookie.
        is_secure: browsers reach it by https.
        setup: what the one-time link says; taken out when it is used.
        rates: how often who asks.
        logins: how often logins are begun from which address.
        hooks: how often webhooks of workflows are asked from which address.
        tests: how often a team tries its webhooks.
        single_sign_on: at a provider, if there is one.
        apps_port: where the proxy in front of apps listens.
        apps_url: how browsers reach it; empty for that port of the host by which they reach this server.
            ``*`` in it is the app.
        url: how others reach this server; empty for the host that they asked for.
        hosts: names of this server.
        waits: who waits for news of a request.
        openings: connections to members that are being opened.
        place_calls: what is being asked of places.
        services: the proxy's way to services, which counts; None without a proxy.
        own: how this process reaches its own routes.
    """

    service: Service
    access: Access
    submissions: Submissions
    quotes: QuoteRequests
    drivers: Drivers
    uploads: Uploads
    finishing: UploadFinishing
    hubs: Hubs
    streams: Streams
    tunnels: Streams
    transfers: Streams
    members: MemberConnections
    lag: LoopLag
    environ: Mapping[str, str]
    cookie: str
    is_secure: bool
    setup: set[str] = field(default_factory=set)
    rates: Rates = field(default_factory=Rates)
    waits: Waits = field(default_factory=Waits)
    logins: Rates = field(default_factory=lambda: Rates(STRANGERS_PER_S, LOGINS_BURST))
    hooks: Rates = field(default_factory=lambda: Rates(STRANGERS_PER_S, STRANGERS_BURST))
    tests: Rates = field(default_factory=lambda: Rates(TESTS_PER_S, TESTS_BURST))
    single_sign_on: SingleSignOn | None = None
    apps_port: int = 0
    apps_url: str = ""
    url: str = ""
    hosts: ServerNames = field(default_factory=lambda: ServerNames(are_all=True))
    openings: SlowCalls = field(default_factory=SlowCalls)
    place_calls: SlowCalls = field(default_factory=SlowCalls)
    services: ServiceProxy | None = None
    own: OwnAddress = field(default_factory=OwnAddress)

    def url_for(self, request: HTTPConnection) -> str:
        """The origin of this server, for links that leave it."""
        return self.url or str(request.base_url).rstrip("/")

    def url_of_apps(self, url: str, label: str = "*") -> str:
        """The origin of apps and services.

        Args:
            url: the origin of this server.
            label: the app, or `SERVICES_LABEL`.
        """
        if self.apps_url:
            return self.apps_url.replace("*", label)
        found = urlsplit(url)
        host = found.hostname or "127.0.0.1"
        return f"{found.scheme}://{f'[{host}]' if ':' in host else host}:{self.apps_port}"

    @cached_property
    def places(self) -> PlaceAnswers:
        """Asks places while somebody fills in a form."""
        return PlaceAnswers(asked_place)

    @cached_property
    def assistants(self) -> Assistants:
        """The tools of assistants at this server."""
        return Assistants(self.own)

    @cached_property
    def away(self) -> RunMonitor:
        """Brings on what machines of their own drive."""
        return RunMonitor(self.service, self.environ)

    @cached_property
    def app_hosts(self) -> AppHosts:
        """The processes that look after apps."""
        return AppHosts(self.service, self.environ)

    @property
    def secrets(self) -> TeamSecrets:
        """Secrets of teams."""
        return TeamSecrets(self.service.database, self.service.home.root, self.environ)

    @property
    def team_logins(self) -> TeamLogins:
        """Accounts that teams have at places."""
        return TeamLogins(self.service.database, self.service.home.root, self.environ)

    @cached_property
    def webhooks(self) -> Webhooks:
        """Who is told what happens to a team's runs."""
        return Webhooks(self.service, self.environ)

    @cached_property
    def sinks(self) -> SinkThread:
        """Sends what tasks report to where recipes say."""
        return SinkThread(SinkFeeder(self.service, self.environ))

    @cached_property
    def triggers(self) -> Triggers:
        """Starts runs of workflows."""
        return Triggers(self.service, self.submissions, self.environ)

    def workflows(self, caller: Caller) -> Workflows:
        """Recipes that are kept, and what starts them, as a caller may."""
        return Workflows(self.service, self.submissions, self.environ, caller, self.triggers.wake)

    @cached_property
    def retention(self) -> Retention:
        """Removes what is old."""
        return Retention(self.service.home, self.service.database, self.environ)

    @cached_property
    def known_callers(self) -> KnownCallers:
        """Who reads, for a moment."""
        return KnownCallers(self.service.database)

    @cached_property
    def room(self) -> KeptCount:
        """What takes room here, as it was counted last."""
        return KeptCount(self.service.home)

    @cached_property
    def audit_feed(self) -> AuditFeed:
        """Sends the audit on."""
        return AuditFeed(self.service.database, self.service.home.identity(), self.environ)

    @property
    def accounts(self) -> Accounts:
        """Users, and members of teams."""
        return Accounts(self.service.database)

    @property
    def device_logins(self) -> DeviceLogins:
        """Command lines that log in."""
        return DeviceLogins(self.service.database, self.access)


def state_of(request: HTTPConnection) -> ServerState:
    """The parts of the server that a request came to."""
    found: ServerState = request.app.state.server
    return found


def finds_caller(scope: str = "") -> Callable[[_Dependency], _Dependency]:
    """Mark a dependency that refuses who may not ask, as it has not that scope."""

    def marked(dependency: _Dependency) -> _Dependency:
        _FINDING[dependency] = scope
        return dependency

    return marked


@finds_caller()
def caller_of(request: Request) -> Caller:
    """The caller, by the header ``Authorization: Bearer`` or a session's cookie, and for which team.

    That is the team of the path, else of the parameter or header, else that of the token or session.

    Raises:
        UnknownCallerError: the caller is unknown.
        NotFoundError: the team is not one of the caller's.
        ForbiddenError: a write that another site's page had the browser send.
        TooOftenError: there were too many requests.
    """
    known: Caller | None = getattr(request.state, "caller", None)
    if known is None:
        known = _asking(request)
        request.state.caller = known
        state_of(request).rates.take(f"{known.name} {known.token}")
    return known


def known_by_token(connection: HTTPConnection) -> Caller:
    """The caller of a websocket, or an assistant, by its token only: a cookie is sent whoever's page asks.

    Raises:
        UnknownCallerError, NotFoundError, TooOftenError: as of `caller_of`.
    """
    server, token = state_of(connection), bearer_of(connection)
    if token is None:
        raise _nobody()
    known = server.access.by_token(token, _asked_team(connection))
    connection.state.caller = known
    server.rates.take(f"{known.name} {known.token}")
    return known


def _asking(request: Request) -> Caller:
    """Who asks: who only reads is known for a moment; a write looks again."""
    if request.method not in ("GET", "HEAD"):
        return _looked_up(request)
    return state_of(request).known_callers.of(credential_of(request), lambda: _looked_up(request))


def _looked_up(request: Request) -> Caller:
    server, team = state_of(request), _asked_team(request)
    if (token := bearer_of(request)) is not None:
        return server.access.by_token(token, team)
    if cookie := request.cookies.get(server.cookie):
        check_same_site(request)
        return server.access.by_session(cookie, team)
    raise _nobody()


def _nobody() -> UnknownCallerError:
    return UnknownCallerError(
        "who are you?", "Send `Authorization: Bearer TOKEN`; `trainmaster token create` makes one."
    )


def _asked_team(request: HTTPConnection) -> str | None:
    asked = (request.path_params.get("team"), request.query_params.get("team"), request.headers.get(TEAM))
    return next((name for name in asked if name), None)


def bearer_of(request: HTTPConnection) -> str | None:
    """The token that is shown; None without one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


@finds_caller()
def stream_of(request: Request) -> OpenStream:
    """A dependency: for an answer that goes on, until the caller may not see it any more."""
    return OpenStream(state_of(request).streams, caller_of(request), credential_of(request))


@finds_caller()
def transfer_of(request: Request) -> OpenStream:
    """A dependency: for what takes long by its size, until the caller may not any more."""
    return OpenStream(state_of(request).transfers, caller_of(request), credential_of(request))


def credential_of(request: HTTPConnection) -> Credential:
    """What the caller has shown."""
    token = bearer_of(request)
    secret = request.cookies.get(state_of(request).cookie, "") if token is None else token
    return Credential(digest_of(secret), token is None, _asked_team(request))


def address_of(request: Request) -> str:
    """From where a request came."""
    return request.client.host if request.client else ""


def check_same_site(request: Request, *, says: bool = True) -> None:
    """Cookies are sent whoever's page asks for it: writes are taken from our own pages only.

    Args:
        request: any.
        says: also refuse a request that does not say where it is from, as programs' do.

    Raises:
        ForbiddenError: it is from elsewhere.
    """
    if request.method in ("GET", "HEAD"):
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    ours = f"{request.url.scheme}://{request.headers.get('host', '')}"
    # A proxy in front may name us by another host than browsers do.
    known = (None, ours, state_of(request).url or ours)
    if site not in (None, "same-origin", "none") or origin not in known:
        raise ForbiddenError("this came from another site's page", "Do it on the page of this server.")
    if says and site is None and origin is None:
        raise ForbiddenError("this does not say which page it came from", "Programs send a token instead.")


def having(scope: str) -> Callable[[Request], Caller]:
    """A dependency: the caller, who must have a scope."""

    @finds_caller(scope)
    def check(request: Request) -> Caller:
        caller = caller_of(request)
        caller.need(scope)
        return caller

    return check


@finds_caller("read")
def _runs(request: Request) -> TeamRuns:
    return TeamRuns(state_of(request).service, caller_of(request))


class Routes(APIRouter):
    """Routes for callers. What anybody may ask for is on a plain `APIRouter`."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401
        """Add a route.

        Raises:
            TypeError: (when its module is imported) it has no scope.
        """
        scopes = set(_scopes(endpoint))
        if not scopes:
            raise TypeError(f"{endpoint.__qualname__}: {path} has no scope: add a parameter such as Reader")
        if scope := max(scopes, key=_SCOPES.index):
            options["openapi_extra"] = {"x-scope": scope}
        super().add_api_route(path, endpoint, **options)


def asks_places(endpoint: Callable[..., _Answer]) -> Callable[..., Coroutine[Any, Any, _Answer]]:
    """Make a route of one that asks places, which may keep it waiting: when it is its team's turn.

    Args:
        endpoint: has parameters `state` and `caller`.
    """

    @functools.wraps(endpoint)
    async def in_turn(**given: Any) -> _Answer:  # noqa: ANN401 - the route's
        state: ServerState = given["state"]
        caller: Caller = given["caller"]
        return await state.place_calls.run(caller.team or caller.name, functools.partial(endpoint, **given))

    return in_turn


def _scopes(function: Callable[..., Any]) -> Iterator[str]:
    if function in _FINDING:
        yield _FINDING[function]
        return
    for kind in get_type_hints(function, include_extras=True).values():
        for mark in getattr(kind, "__metadata__", ()):
            if getattr(mark, "dependency", None):
                yield from _scopes(mark.dependency)


#: Parameters of routes.
State = Annotated[ServerState, Depends(state_of)]
Runs = Annotated[TeamRuns, Depends(_runs)]
Following = Annotated[OpenStream, Depends(stream_of)]
Transfer = Annotated[OpenStream, Depends(transfer_of)]
Known = Annotated[Caller, Depends(caller_of)]
Reader = Annotated[Caller, Depends(having("read"))]
Submitter = Annotated[Caller, Depends(having("run"))]
Manager = Annotated[Caller, Depends(having("manage"))]
Admin = Annotated[Caller, Depends(having("admin"))]
#: Of a list whose rows are numbered: databases count to that.
Cursor = Annotated[int | None, Query(ge=0, le=2**63 - 1)]


def problem(status: int, title: str, hint: str = "", **more: Any) -> JSONResponse:  # noqa: ANN401 - JSON
    """An answer as RFC 9457 has it, with our hint."""
    content = {"type": "about:blank", "title": title, "status": status, "hint": hint, **more}
    answer = JSONResponse(content, status, media_type=PROBLEM)
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    if status in (429, 503):
        answer.headers["retry-after"] = str(_RETRY_AFTER_S)
    return answer


def status_of(error: TrainmasterError) -> int:
    """HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def told(error: TrainmasterError) -> JSONResponse:
    """What an error is answered with."""
    # Clients raise it again: which of the errors that everybody knows it is.
    more: dict[str, Any] = {"error": next(c.__name__ for c in type(error).__mro__ if c.__module__ == _ERRORS)}
    if isinstance(error, RecipeError):
        more["mistakes"] = [
            {"line": m.line, "column": m.column, "key": m.key_path, "message": m.message}
            for m in error.mistakes
        ]
    answer = problem(status_of(error), str(error.args[0]), error.hint, **more)
    if isinstance(error, TooOftenError):
        answer.headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return answer
