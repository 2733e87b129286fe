"""`Allowance`: what a run may cost while it goes on, where there is a budget for the month.

At its admission the p95 of its quote was set aside. A run that comes to need more asks for it before it is
spent, and gets what no other run was given: so all runs together never pass a month's budget. What it has
got is its cap, below which it ends in order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.budget import SWITCH_OFF_S, USUAL_LEASE_S
from trainmaster.db import ledger

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.control.decide.budget import Meter
    from trainmaster.db import Database

#: How often it is asked for more, or whether there are limits now.
LOOK_S: Final = 10.0
#: Money is there for so long, so that leases need not be shorter than usual.
AHEAD_S: Final = LOOK_S + USUAL_LEASE_S + SWITCH_OFF_S


class Allowance:
    """Of one run, for its driver.

    Args:
        database: of the home.
        run: its id.
        team: whose; `OWNER` of the home.
        cap_usd: of its recipe; infinite where there is none.
        usd_per_hour: of all machines that are planned, at the highest price.
    """

    def __init__(self, database: Database, run: str, team: str, cap_usd: float, usd_per_hour: float) -> None:
        self._database = database
        self._run = run
        self._team = team
        self._cap_usd = cap_usd
        self._lease_usd = usd_per_hour * AHEAD_S / 3600
        self._next_at = -math.inf

    def hurry(self) -> None:
        """What is set aside has changed: look at once."""
        self._next_at = -math.inf

    def look(self, meter: Meter, now: float) -> None:
        """Give the meter the cap that holds now, after asking for more money if it is needed soon.

        Raises:
            StoreError: the database cannot be used.
        """
        if now < self._next_at:
            return
        self._next_at = now + LOOK_S
        meter.cap_usd, meter.why = self._cap_usd, ""
        if not self._database.read(ledger.month_limits(self._team)):
            return
        # The lease: machines may be lost, and rented again.
        wanted = ledger.micro(min(meter.bill(now + AHEAD_S) + self._lease_usd, self._cap_usd))
        at = self._database.clock_s()

        def write(connection: Connection, _: object) -> int:
            return ledger.reserve_up_to(connection, self._run, wanted, at)

        may_usd = ledger.dollars(self._database.write(write))
        if may_usd < self._cap_usd:
            meter.cap_usd = may_usd
            meter.why = f"of the month's budget there were only ${may_usd:.2f} for it"
