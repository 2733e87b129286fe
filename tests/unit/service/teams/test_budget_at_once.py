"""Two servers reserve from one team's month at the same moment: together never more than there is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainmaster.db import AcceptedRun, Database, Submission, access, ledger
from trainmaster.service.teams.team_budget import OverBudgetError, budgets, set_aside

NOW = 86400.0 * 40
MONTH_USD = 100.0
EACH_USD = 30.0
#: So many at once, each over connections of one server or the other.
AT_ONCE = 8


@pytest.fixture(params=["sqlite", "postgresql"])
def servers(request, tmp_path):
    """Two databases with engines of their own on the same place, as two servers have them."""
    is_postgres = request.param == "postgresql"
    url = request.getfixturevalue("postgres").new_url() if is_postgres else f"sqlite:///{tmp_path / 'a.db'}"
    found = [Database(url), Database(url)]
    access.add_team(found[0], "red", {"monthly_usd": MONTH_USD}, NOW)
    yield found
    for each in found:
        each.close()


def together(ask):
    """What each of `AT_ONCE` threads gets that begin at the same moment."""
    begin = threading.Barrier(AT_ONCE)

    def one(number):
        begin.wait()
        return ask(number)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(AT_ONCE)))


def make_run(server, name, most_usd):
    sent = Submission("x", "red")
    new = AcceptedRun(name, "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)], submission=sent)
    server.create_run(new, NOW, lambda connection: set_aside(connection, name, "red", most_usd, NOW))


def test_runs_that_are_sent_at_once_do_not_share_the_same_money(servers):
    def send(number):
        try:
            make_run(servers[number % 2], f"run-{number}", EACH_USD)
        except OverBudgetError:
            return False
        return True

    assert sum(together(send)) == MONTH_USD // EACH_USD
    (red,) = budgets(servers[0], NOW)
    assert red.reserved_usd == MONTH_USD // EACH_USD * EACH_USD
    accepted = [number for number in range(AT_ONCE) if servers[1].has_run(f"run-{number}")]
    assert len(accepted) == MONTH_USD // EACH_USD, "one that was refused leaves no row"


def test_runs_that_want_more_at_once_get_what_is_left_and_no_more(servers):
    for number in range(AT_ONCE):
        make_run(servers[0], f"run-{number}", 1.0)

    def grow(number):
        most = ledger.micro(EACH_USD)
        return servers[number % 2].write(
            lambda connection, _: ledger.reserve_up_to(connection, f"run-{number}", most, NOW)
        )

    assert sum(together(grow)) == ledger.micro(MONTH_USD)
    (red,) = budgets(servers[1], NOW)
    assert (red.reserved_usd, red.left_usd) == (MONTH_USD, 0.0)
