"""Pages of services: a list, and one with its replicas and a form to ask it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.services import services as listed
from trainmaster.api.rest.services import told_service
from trainmaster.api.rest.state import Reader, Runs, ServerState, State, having
from trainmaster.service.endpoints.endpoint_access import EndpointAccess, ReplicaResponse, ask
from trainmaster.service.endpoints.endpoints import Endpoints
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import TrainmasterError
from trainmaster.web.rendering import page

router = APIRouter(include_in_schema=False)
Asker = Annotated[Caller, Depends(having("infer"))]
_EXAMPLE = '{"inputs": [{"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]}'


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
def show(request: Request, name: str, state: State, caller: Reader, runs: Runs) -> Response:
    """One of them."""
    return _page(request, state, caller, runs, name)


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
    body: str = _EXAMPLE,
    answer: ReplicaResponse | None = None,
    mistake: TrainmasterError | None = None,
) -> Response:
    found = told_service(request, state, caller, name)
    machines: list[dict[str, Any]] = runs.details(found["run"]).machines()
    usd = sum(each["usd_per_hour"] for each in machines if each["ended_at"] is None)
    return page(
        request,
        "service.html",
        service=found,
        usd_per_hour=usd,
        path_asked=path or f"/v2/models/{name}/infer",
        body=body,
        answer=answer,
        mistake=mistake,
    )
