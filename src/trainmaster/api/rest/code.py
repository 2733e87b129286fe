"""Routes of code: content by its digest, so that what is there is not sent again."""

from __future__ import annotations

import tempfile

from fastapi import Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Routes, State, Submitter, Transfer
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.service.uploads.git_code import GitCode
from trainmaster.spec.errors import NotFoundError

router = Routes(tags=["code"])


class GitRevision(Body):
    """A revision of a public repository."""

    url: str = Field(description="https://")
    revision: str = Field(default="HEAD", description="a branch, a tag, or a whole commit id")


@router.post("/code/git", status_code=201)
def fetch(body: GitRevision, state: State, caller: Submitter) -> dict[str, str]:
    """Have code fetched from a public git repository: its digest, and the commit."""
    code, commit = GitCode(CodeUploads(state.service.home, caller.team)).add(body.url, body.revision)
    return {"code": code, "commit": commit}


@router.head("/code/{digest}")
def has(digest: str, state: State, caller: Submitter) -> Response:
    """Whether it is there (200), or not (404)."""
    if not CodeUploads(state.service.home, caller.team).has(digest):
        raise NotFoundError(f"no code {digest[:64]} was sent")
    return Response()


@router.put("/code/{digest}", status_code=201)
async def put(
    digest: str, request: Request, response: Response, state: State, caller: Submitter, transfer: Transfer
) -> dict[str, str]:
    """Send a tar; `digest` is its SHA-256. 200 if it was there already."""
    uploads = CodeUploads(state.service.home, caller.team)
    with tempfile.TemporaryFile() as spooled:
        async for piece in transfer.body(request.stream()):
            spooled.write(piece)
        is_new = await run_in_threadpool(uploads.put, digest, spooled)
    if not is_new:
        response.status_code = 200
    return {"code": digest}
