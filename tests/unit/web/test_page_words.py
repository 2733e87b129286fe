"""What pages say of what has not come: messages that were not received, runs that left no model."""

from __future__ import annotations

import pytest
from test_pages import Site

from trainmaster.service.runs.highlights import Highlights
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.web.quotes import _cap_usd
from trainmaster.web.rendering import for_waiting

FAILS = {"id": "m", "topic": "run.ended", "at": 5.0, "tries": 1, "due_at": 9.0, "done_at": None}
FAILS["status"] = "x.example cannot be reached"
GIVEN_UP = {**FAILS, "done_at": 9.0, "status": "HTTP 500"}


@pytest.fixture
def site(tmp_path):
    found = Site(tmp_path)
    yield found
    found.service.close()


@pytest.mark.parametrize(
    ("deliveries", "said"),
    [
        ([], "nothing sent yet"),
        ([FAILS, GIVEN_UP], "none of the last 2 was received"),
        ([FAILS, {**FAILS, "done_at": 6.0, "status": "HTTP 204"}], "last received <time"),
        ([FAILS, {**FAILS, "done_at": 6.0, "status": "sent"}], "last received <time"),
    ],
)
def test_what_was_not_received_is_not_said_to_be_sent(site, monkeypatch, deliveries, said):
    site.browser.post("/notifications", data={"target": "https://x.example/h", "kind": "webhook"})
    monkeypatch.setattr(site.state.webhooks, "deliveries", lambda *_: deliveries)
    assert said in site.page("/notifications")


def test_a_run_that_left_no_model_says_so_and_what_lies_beside_its_code(site, monkeypatch):
    left = ({"experiment": "train", "tasks": 1, "silent": 0, "metrics": {}},)
    monkeypatch.setattr(
        TeamRuns, "highlights", lambda *_: Highlights((), (), (), left, ("<m>.pt", "log.csv"))
    )
    page = site.page("/runs/digits-1")
    assert "train left no model: nothing was written into <code>TRAINMASTER_OUTPUT_DIR</code>." in page
    assert "Written beside the code, which keeps no model: &lt;m&gt;.pt, log.csv." in page


def test_a_member_is_not_told_of_an_admin_s_shell():
    words = "$1 of the month's budget: team a has $0, and an admin raises it: `trainmaster budget --team a`"
    assert for_waiting(words).endswith("and an admin raises it")
    own = "$1 of the month's budget: the owner has $0, and `trainmaster budget --monthly AMOUNT` raises it"
    assert "trainmaster" not in for_waiting(own)


@pytest.mark.parametrize(("most_usd", "cap_usd"), [(0.0050, 0.01), (0.02, 0.02), (2.7501, 2.76)])
def test_the_cap_that_a_quote_says_is_the_one_that_it_fills_in(most_usd, cap_usd):
    assert _cap_usd(most_usd) == cap_usd
