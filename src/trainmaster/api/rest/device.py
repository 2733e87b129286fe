"""Routes by which a command line asks for a token; they need no login. The page is in `web.sessions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import State, address_of

router = APIRouter(tags=["login"])


class NewDevice(Body):
    """Who asks."""

    client: str = Field("", max_length=200, description="what the person who confirms is shown")


class DeviceCode(BaseModel):
    """What to show, and what to ask with."""

    device_code: str = Field(description="a secret of who asks")
    user_code: str = Field(description="to be confirmed on the page /device")
    url: str = Field(description="of that page")
    expires_in_s: float
    interval_s: float = Field(description="between two questions for the token")


class DeviceAsk(Body):
    """Who asks for the token."""

    device_code: str = Field(max_length=200)


class DeviceToken(BaseModel):
    """The token, this once."""

    token: str | None = Field(description="null until the code is confirmed")


@router.post("/device/code")
def begin(body: NewDevice, request: Request, state: State) -> DeviceCode:
    """Ask for a code that a person confirms."""
    state.logins.take(address_of(request))
    return DeviceCode(url=f"{state.url_for(request)}/device", **state.device_logins.begin(body.client))


@router.post("/device/token")
def token(body: DeviceAsk, request: Request, state: State) -> DeviceToken:
    """The token, when it is confirmed; 404 when the login is over."""
    state.access.admit_attempt(address_of(request))
    return DeviceToken(token=state.device_logins.token(body.device_code))
