"""Pages of services: a list, and one with its replicas and a form to ask it."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.services import services as listed
from trainmaster.api.rest.services import told_service
from trainmaster.api.rest.state import Reader, Runs, ServerState, State, having
from trainmaster.service.endpoints.endpoint_access import EndpointAccess, ReplicaResponse, ask
from trainmaster.service.endpoints.endpoints import Endpoints
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.plain_json import parsed_json
from trainmaster.web.rendering import is_part, page

router = APIRouter(include_in_schema=False)
Asker = Annotated[Caller, Depends(having("infer"))]
#: Of a picture, a form shows no more.
_MOST_VALUES: Final = 1000
_EXAMPLE: Final = '{"inputs": [{"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]}'


@router.get("/services")
def services(
    request: Request,
    state: State,
    caller: Reader,
    over: Annotated[bool, Query(alias="all")] = False,
) -> Response:
    """The newest that are not over, or all."""
    found = listed(request, state, caller)["services"]
    shown = [each for each in found if over or each["state"] != "DONE"]
    return page(request, "services.html", services=shown, left_out=len(found) - len(shown))


@router.get("/services/{name}")
def show(request: Request, name: str, state: State, caller: Reader, runs: Runs, was: str = "") -> Response:
    """One of them; or how it stands now, and once that has changed, all of its page."""
    if not is_part(request):
        return _page(request, state, caller, runs, name)
    found = told_service(request, state, caller, name)
    answer = page(request, "service_part.html", service=found, usd_per_hour=_usd_per_hour(runs, found["run"]))
    if found["state"] != was:
        answer.headers["hx-refresh"] = "true"
    return answer


@router.post("/services/{name}")
def try_it(
    request: Request,
    name: str,
    state: State,
    caller: Asker,
    runs: Runs,
    path: Annotated[str, Form()],
    body: Annotated[str, Form()] = "",
) -> Response:
    """Asks it, and shows the answer."""
    access = EndpointAccess(state.service, state.members, state.access)
    try:
        answer = ask(Endpoints(state.service, caller), access, name, path, body)
    except TrainmasterError as error:
        return _page(request, state, caller, runs, name, path=path, body=body, mistake=error)
    return _page(request, state, caller, runs, name, path=path, body=body, answer=answer)


def _page(
    request: Request,
    state: ServerState,
    caller: Caller,
    runs: Runs,
    name: str,
    *,
    path: str = "",
    body: str = "",
    answer: ReplicaResponse | None = None,
    mistake: TrainmasterError | None = None,
) -> Response:
    found = told_service(request, state, caller, name)
    if not path:  # nothing was asked yet: what a model is asked, or, of another program, nothing is known
        path = f"/{found['path']}/infer" if found["path"] else "/"
        body = _example(state, caller, found) if found["path"] else ""
    return page(
        request,
        "service.html",
        service=found,
        usd_per_hour=_usd_per_hour(runs, found["run"]),
        path_asked=path,
        body=body,
        answer=answer,
        mistake=mistake,
    )


def _usd_per_hour(runs: TeamRuns, run: str) -> float:
    machines: list[dict[str, Any]] = runs.details(run).machines()
    return float(sum(each["usd_per_hour"] for each in machines if each["ended_at"] is None))


def _example(state: ServerState, caller: Caller, found: dict[str, Any]) -> str:
    """A request with the inputs that its model takes, as far as that can be asked."""
    if found["state"] == "READY" and "infer" in caller.scopes:
        access = EndpointAccess(state.service, state.members, state.access)
        with suppress(
            TrainmasterError, ValueError, KeyError, TypeError
        ):  # another program answers as it likes
            said = ask(Endpoints(state.service, caller), access, found["name"], f"/{found['path']}", "")
            if inputs := [_tensor(each) for each in parsed_json(said.text, finite=True)["inputs"]]:
                return json.dumps({"inputs": inputs})
    return _EXAMPLE


def _tensor(told: dict[str, Any]) -> dict[str, Any]:
    """One of that name, type and shape; of any length is 1.

    >>> _tensor({"name": "x", "datatype": "INT64", "shape": [-1, 2]})
    {'name': 'x', 'shape': [1, 2], 'datatype': 'INT64', 'data': [0, 0]}
    """
    shape = [max(1, int(length)) for length in told["shape"]]
    values = {"BYTES": "text", "BOOL": False}.get(told["datatype"], 0)
    count = min(math.prod(shape), _MOST_VALUES)
    return {"name": told["name"], "shape": shape, "datatype": told["datatype"], "data": [values] * count}
