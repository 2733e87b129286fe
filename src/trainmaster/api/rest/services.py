"""Routes of services: which there are, and where they are asked; requests themselves go to the proxy."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from trainmaster.api.proxy.headers import SERVICES, SERVICES_LABEL
from trainmaster.api.rest.state import Reader, Routes, Runs, ServerState, State, Submitter
from trainmaster.service.endpoints.endpoints import Endpoints
from trainmaster.service.users.caller import Caller

router = Routes(tags=["services"])


@router.get("/services")
def services(request: Request, state: State, caller: Reader) -> dict[str, Any]:
    """The newest services, those that are not over first."""
    found = Endpoints(state.service, caller).listed()
    return {"services": [_told(request, state, each) for each in found]}


@router.get("/services/{service}")
def show_service(request: Request, service: str, state: State, caller: Reader) -> dict[str, Any]:
    """One of them, with its replicas, and what this server has measured in the last minute.

    It is asked at its `url` by tokens with the scope `infer`; it ends with its `run`.
    """
    return told_service(request, state, caller, service)


@router.delete("/services/{service}", status_code=202)
def end_service(service: str, state: State, runs: Runs, caller: Submitter) -> dict[str, Any]:
    """End it: its run is cancelled, with whatever else the run does."""
    run = Endpoints(state.service, caller).show(service)["run"]
    runs.cancel(run, state.environ)
    return {"run": run}


def told_service(request: Request, state: ServerState, caller: Caller, name: str) -> dict[str, Any]:
    """A service as the interface and pages show it."""
    return _told(request, state, Endpoints(state.service, caller).show(name))


def _told(request: Request, state: ServerState, found: dict[str, Any]) -> dict[str, Any]:
    counts = state.services
    measured = counts.measured(found["run"], found["name"]) if counts is not None else None
    url = f"{state.url_of_apps(state.url_for(request), SERVICES_LABEL)}{SERVICES}{found['name']}/"
    return {**found, "url": url, "measured": measured}
