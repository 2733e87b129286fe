"""Capsules that are asked of a server: few are written at a time."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.api.rest import run_details
from trainmaster.spec.errors import UsageError

PATH = "/api/v1/runs/job-red/capsule.zip"


def test_two_capsules_are_written_at_a_time(served, monkeypatch):
    begun, during = [], []

    def write(service, run, file):
        begun.append(run)
        during.append(served.ask("red-read", "GET", PATH))
        file.write(b"zip")

    monkeypatch.setattr(run_details, "write_capsule", write)
    answer = served.ask("red-read", "GET", PATH)
    assert (answer.status_code, answer.content) == (200, b"zip")
    assert ([each.status_code for each in during], len(begun)) == ([429, 200], 2)
    refused = during[0]
    assert (refused.headers["retry-after"], "other capsules" in refused.json()["title"]) == ("10", True)


def test_one_that_cannot_be_written_takes_no_place(served, monkeypatch):
    def write(service, run, file):
        raise UsageError("its code is not here", "")

    monkeypatch.setattr(run_details, "write_capsule", write)
    assert [served.ask("red-read", "GET", PATH).status_code for _ in range(3)] == [422] * 3
