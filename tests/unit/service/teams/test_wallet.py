"""A wallet: no sequence or concurrency of starts passes it."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.db import AcceptedRun, Database, NewQuoteRow, RunChange, Submission, ledger
from trainmaster.service.renting.offer import RentalOffer
from trainmaster.service.run_planning import capped_by_wallet
from trainmaster.service.teams.admission import Application, entrance
from trainmaster.service.teams.team_budget import OverBudgetError
from trainmaster.service.teams.wallet import WalletBalance, balance_of, checked_at_most
from trainmaster.service.users.caller import Wallet
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

NOW = 86400.0 * 40
WALLET = Wallet("mcp", 20.0)


def start(database, name, cap_usd, wallet=WALLET, wish=None):
    new = AcceptedRun(
        name, "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)],
        wallet=wallet and wallet.name, submission=Submission("x") if wish else None,
    )  # fmt: skip
    return database.create_run(new, NOW, entrance(name, "", cap_usd, wish, NOW, wallet))


def opened(path):
    return Database(f"sqlite:///{path}")


@pytest.fixture
def database(tmp_path):
    found = opened(tmp_path / "a.db")
    yield found
    found.close()


def test_caps_count_then_what_runs_have_really_cost(database):
    lease = start(database, "a", 15.0)
    start(database, "of-others", 500.0, wallet=None)
    start(database, "free", 0.0)
    assert balance_of(WALLET, database.read).as_dict() == {
        "wallet": "mcp", "at_most_usd": 20.0, "spent_usd": 0.0, "reserved_usd": 15.0, "left_usd": 5.0,
    }  # fmt: skip
    with pytest.raises(OverBudgetError, match=r"may cost \$5.01, and the wallet 'mcp' has \$5.00 left"):
        start(database, "b", 5.01)
    assert not database.has_run("b")
    with pytest.raises(UsageError, match="known price only"):
        start(database, "c", None)
    database.put_cost(lease, 4.0, NOW)
    assert balance_of(WALLET, database.read).left_usd == 5.0
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], NOW)
    assert balance_of(WALLET, database.read).left_usd == 16.0
    with pytest.raises(OverBudgetError):  # it goes on with its own cap, of which 4 are spent
        database.requeue(lease, NOW, entrance("a", "", 20.01, None, NOW, WALLET))
    database.requeue(lease, NOW, entrance("a", "", 20.0, None, NOW, WALLET))
    assert balance_of(WALLET, database.read).left_usd == 0.0


def test_a_binding_quote_gives_nothing_of_the_cap_back(database):
    start(database, "a", 15.0)
    database.add_quote(NewQuoteRow("a", None, "binding", NOW, "{}"), 3.0)
    assert balance_of(WALLET, database.read).reserved_usd == 15.0


def test_a_run_that_waits_for_its_turn_counts(database):
    limits = {"runs_at_once": 1}
    database.write(lambda connection, _: ledger.set_limits(connection, "", limits))
    for name in ("a", "b"):
        start(database, name, 8.0, wish=Application(0, 0.0, waits=False))
    assert balance_of(WALLET, database.read).reserved_usd == 16.0
    with pytest.raises(OverBudgetError):
        start(database, "c", 8.0, wish=Application(0, 0.0, waits=True))


@dataclass
class Bookkeeping:
    """What is true of the world."""

    leases: dict = field(default_factory=dict)
    caps: dict = field(default_factory=dict)
    cost: dict = field(default_factory=dict)
    over: set = field(default_factory=set)

    def most(self):
        return sum(self.cost[name] if name in self.over else self.caps[name] for name in self.leases)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["start", "spend", "end", "again"]), st.integers(0, 9), st.integers(1, 1200)),
    max_size=25,
)


@given(operations=OPERATIONS)
def test_no_sequence_passes_it(tmp_path_factory, operations):
    database, true = opened(tmp_path_factory.mktemp("wallet") / "a.db"), Bookkeeping()
    for number, (what, which, cents) in enumerate(operations):
        names = list(true.leases)
        name = names[which % len(names)] if names else None
        if what == "start":
            name = f"run-{number}"
            fits = true.most() + cents / 100 <= WALLET.at_most_usd + 1e-9
            try:
                true.leases[name] = start(database, name, cents / 100)
                true.caps[name], true.cost[name] = cents / 100, 0.0
            except OverBudgetError:
                assert not fits
            else:
                assert fits
        elif name is None or (what != "again") == (name in true.over):
            continue
        elif what == "spend":
            true.cost[name] = min(true.caps[name], true.cost[name] + cents / 400)
            database.put_cost(true.leases[name], true.cost[name], NOW)
        elif what == "end":
            end = RunChange(State.WAITING, State.DONE, EndReason.CANCELLED)
            database.commit(true.leases[name], [end], NOW)
            true.over.add(name)
        else:
            try:
                admit = entrance(name, "", true.caps[name], None, NOW, WALLET)
                database.requeue(true.leases[name], NOW, admit)
                true.over.discard(name)
            except OverBudgetError:
                pass
        assert true.most() <= WALLET.at_most_usd + 1e-6
        balance = balance_of(WALLET, database.read)
        assert balance.left_usd == pytest.approx(WALLET.at_most_usd - true.most(), abs=1e-4)
    database.close()


def test_concurrent_starts_never_pass_it(tmp_path):
    path = tmp_path / "a.db"
    opened(path).close()
    started, go = [], threading.Barrier(6)

    def work(seed):
        mine, draw = opened(path), random.Random(seed)
        go.wait()
        for number in range(6):
            cap_usd = draw.randint(100, 700) / 100
            try:
                start(mine, f"run-{seed}-{number}", cap_usd)
                started.append(cap_usd)
            except OverBudgetError:
                pass
        mine.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = opened(path)
    balance = balance_of(WALLET, found.read)
    found.close()
    assert sum(started) == pytest.approx(balance.reserved_usd)
    assert 13.0 < round(sum(started), 2) <= 20.0  # what was refused were at most 7


def offer(tmp_path, quoted_usd=None, total=None, usd_per_hour=1.0):
    from trainmaster.advisor.quote.interval import Interval

    content = {"name": "a", "provider": "aws", "experiments": {"main": {"command": "true"}}}
    content |= {} if total is None else {"budget": {"total": total}}
    recipe = Recipe.from_dict(content, directory=tmp_path)

    class Quote:
        cost_usd = None if quoted_usd is None else Interval(quoted_usd / 3, quoted_usd / 2, quoted_usd)

    return RentalOffer(recipe, (), usd_per_hour, usd_per_hour, Quote())


@pytest.mark.parametrize(
    ("quoted", "total", "left", "cap"),
    [
        (5.0, None, 20.0, 5.29),  # the upper end, and a lease at the end
        (5.0, None, 5.1, 5.1),  # all that is left
        (5.0, None, 4.99, OverBudgetError),
        (5.0, "$8", 20.0, 8.0),
        (5.0, "$8", 7.99, OverBudgetError),
        (None, "$8", 8.0, 8.0),
        (None, None, 20.0, UsageError),
    ],
)
def test_a_run_is_capped_by_its_quote_its_budget_and_what_is_left(tmp_path, quoted, total, left, cap):
    balance = WalletBalance("mcp", left, 0.0, 0.0)
    if isinstance(cap, float):
        assert capped_by_wallet(offer(tmp_path, quoted, total), balance).budget.total_usd == cap
    else:
        with pytest.raises(cap):
            capped_by_wallet(offer(tmp_path, quoted, total), balance)


def test_what_costs_nothing_needs_no_quote(tmp_path):
    balance = WalletBalance("mcp", 1.0, 1.0, 0.0)
    assert capped_by_wallet(offer(tmp_path, usd_per_hour=0.0), balance).budget is None


def test_an_amount_is_above_nothing():
    assert checked_at_most(20) == 20
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="no amount"):
            checked_at_most(wrong)
