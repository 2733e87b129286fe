"""The page of the recommender."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.advisor.papers.recommend import PUBLISHED, Wish
from trainmaster.api.rest.state import Runs
from trainmaster.spec.errors import TrainmasterError
from trainmaster.web.rendering import page

router = APIRouter(include_in_schema=False)


@router.get("/recommend")
def recommend(
    request: Request,
    runs: Runs,
    batch: str = "64000",
    latency_ms: str = "0",
    profile: str = PUBLISHED,
) -> Response:
    """Anwar's question: batch size and latency in, number of machines out."""
    found, trouble = None, ""
    try:
        found = runs.recommend(Wish(float(batch), float(latency_ms)), profile.strip() or PUBLISHED)
    except ValueError:
        trouble = "Batch and latency are numbers."
    except TrainmasterError as error:
        trouble = str(error)
    values = {"batch": batch, "latency_ms": latency_ms, "profile": profile}
    return page(request, "recommend.html", 422 if trouble else 200, found=found, problem=trouble, **values)
