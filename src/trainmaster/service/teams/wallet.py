"""Wallets: what all runs that a token, or an assistant, has started may cost together, whenever that was.

A run is accepted with a cap that fits into what is left, and all of the cap is set aside in that transaction.
When the run is over, and its machines are given back, it counts with what it has cost. Nothing is kept but
the ledger's rows and `run.wallet`, so no kill at any line loses or counts anything twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trainmaster.dataclass import dataclass
from trainmaster.db import ledger
from trainmaster.service.teams.team_budget import OverBudgetError, Read
from trainmaster.spec.errors import UsageError
from trainmaster.spec.plain_json import JsonObject, plain
from trainmaster.spec.units import dollars

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.service.users.caller import Wallet


@dataclass(frozen=True, slots=True)
class WalletBalance(JsonObject):
    """Of a wallet at one moment, US dollars.

    Attributes:
        wallet: its name.
        at_most_usd: what may be spent from it.
        spent_usd: what its runs have cost.
        reserved_usd: what those that are not over may still cost: the rest of their caps.
    """

    wallet: str
    at_most_usd: float
    spent_usd: float
    reserved_usd: float

    @property
    def left_usd(self) -> float:
        """What is not spoken for; below 0 where the wallet was made smaller."""
        return self.at_most_usd - self.spent_usd - self.reserved_usd

    def check(self, most_usd: float, more_usd: float | None = None) -> None:
        """Refuse a run that may cost so much, ``more_usd`` beyond what is set aside for it.

        Raises:
            OverBudgetError: it does not fit.
        """
        more_usd = most_usd if more_usd is None else more_usd
        if ledger.micro(more_usd) > ledger.micro(self.left_usd):
            raise OverBudgetError(
                f"this run may cost {dollars(most_usd)}, and the wallet {self.wallet!r} has "
                f"{dollars(max(0.0, self.left_usd))} left of {dollars(self.at_most_usd)}: "
                f"{dollars(self.spent_usd)} spent, {dollars(self.reserved_usd)} set aside for other runs",
                "Lower its cap (`budget.total`, max_usd), or wait for a run to end; else who made the wallet "
                "gives another with more: `token create NAME --at-most`, or at home `mcp --at-most`.",
            )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**JsonObject.as_dict(self), "left_usd": plain(self.left_usd)}


def balance_of(wallet: Wallet, read: Read) -> WalletBalance:
    """What of a wallet is spent, set aside and left now.

    Args:
        wallet: whichever.
        read: runs queries: of a database, or within a transaction.
    """
    found = ledger.in_wallet(read, wallet.name)
    spent, reserved = ledger.dollars(found.spent), ledger.dollars(found.reserved)
    return WalletBalance(wallet.name, wallet.at_most_usd, spent, reserved)


def admit(connection: Connection, run: str, most_usd: float | None, wallet: Wallet) -> None:
    """Refuse a run that does not fit, in the transaction that accepts it or goes on with it.

    Args:
        connection: in a transaction that holds `ledger.lock_admission`.
        run: its id; its row is there, and what was set aside for it before counts for it.
        most_usd: its cap; None if it has none.
        wallet: that has to pay for it.

    Raises:
        OverBudgetError: it does not fit.
        UsageError: it may cost anything.
    """
    if most_usd == 0:
        return
    cap_usd = known_cost(wallet.name, most_usd)
    balance = balance_of(wallet, lambda query: connection.execute(query).mappings().all())
    balance.check(cap_usd, ledger.dollars(ledger.missing(connection, run, ledger.micro(cap_usd))))


def known_cost(wallet: str, most_usd: float | None) -> float:
    """What a run may cost.

    Raises:
        UsageError: that is unknown.
    """
    if most_usd is None:
        raise UsageError(
            f"the wallet {wallet!r} pays for runs with a known price only, and what this one may cost is "
            "unknown",
            "Quote it first (it is measured for a minute), or set `budget.total`, or max_usd.",
        )
    return most_usd


def checked_at_most(at_most_usd: float) -> float:
    """An amount of a wallet.

    Raises:
        UsageError: it is none.
    """
    if not 0 < at_most_usd < math.inf:
        raise UsageError(f"at most ${at_most_usd:g} is no amount to spend", "Give US dollars, such as 20.")
    return at_most_usd
