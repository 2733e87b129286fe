"""`Wallet`: what all runs that a token, or an assistant, has started may cost together, whenever that was.

A run is accepted with a cap that fits into what is left, and all of the cap is set aside in that transaction.
When the run is over, and its machines are given back, it counts with what it has cost. Nothing is kept but
the ledger's rows and `run.wallet`, so no kill at any line loses or counts anything twice.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.db import ledger
from trainmaster.service.teams.team_budget import OverBudgetError, Read
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.db import Database
    from trainmaster.service.renting import RentalOffer
    from trainmaster.spec import Recipe


@dataclass(frozen=True, slots=True)
class WalletBalance:
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON, rounded to a millionth."""
        values = {**asdict(self), "left_usd": self.left_usd}
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class Wallet:
    """Money that no start may pass.

    Attributes:
        name: of the wallet: runs that name it draw on it.
        at_most_usd: what they may cost together.
    """

    name: str
    at_most_usd: float

    def balance(self, database: Database) -> WalletBalance:
        """What is spent, set aside and left now."""
        return self._balance(database.read)

    def _balance(self, read: Read) -> WalletBalance:
        found = ledger.in_wallet(read, self.name)
        spent, reserved = ledger.dollars(found.spent), ledger.dollars(found.reserved)
        return WalletBalance(self.name, self.at_most_usd, spent, reserved)

    def admit(self, connection: Connection, run: str, most_usd: float | None) -> None:
        """Refuse a run that does not fit, in the transaction that accepts it or goes on with it.

        Args:
            connection: in a transaction that holds `ledger.lock_admission`.
            run: its id; its row is there, and what was set aside for it before counts for it.
            most_usd: its cap; None if it has none.

        Raises:
            OverBudgetError: it does not fit.
            UsageError: it may cost anything.
        """
        if most_usd == 0:
            return
        if most_usd is None:
            raise _unknown_cost(self)
        balance = self._balance(lambda query: connection.execute(query).mappings().all())
        more = ledger.missing(connection, run, ledger.micro(most_usd))
        if more > ledger.micro(balance.left_usd):
            raise _does_not_fit(most_usd, balance)


def capped_by_wallet(offer: RentalOffer, balance: WalletBalance) -> Recipe:
    """The recipe of an offer with a cap, ``budget.total``, that what is left of a wallet pays for.

    Raises:
        OverBudgetError: its budget, or the upper end of its quote, is more than is left.
        UsageError: it has neither.
    """
    from trainmaster.service.run_planning import capped

    recipe = offer.recipe
    if not offer.costs:
        return recipe
    total_usd = recipe.budget.total_usd if recipe.budget is not None else None
    needs_usd = offer.most_usd if total_usd is None else total_usd
    if needs_usd is None or offer.cap_usd is None:
        raise _unknown_cost(balance)
    if ledger.micro(needs_usd) > ledger.micro(balance.left_usd):
        raise _does_not_fit(needs_usd, balance)
    return capped(recipe, min(offer.cap_usd if total_usd is None else total_usd, balance.left_usd))


def checked_at_most(at_most_usd: float) -> float:
    """An amount of a wallet.

    Raises:
        UsageError: it is none.
    """
    if not 0 < at_most_usd < math.inf:
        raise UsageError(f"at most ${at_most_usd:g} is no amount to spend", "Give US dollars, such as 20.")
    return at_most_usd


def _does_not_fit(most_usd: float, balance: WalletBalance) -> OverBudgetError:
    return OverBudgetError(
        f"this run may cost ${most_usd:.2f}, and the wallet {balance.wallet!r} has "
        f"${max(0.0, balance.left_usd):.2f} left of ${balance.at_most_usd:.2f} "
        f"(${balance.spent_usd:.2f} spent, ${balance.reserved_usd:.2f} set aside)",
        "Set a lower cap (`budget.total`, or max_usd), take smaller machines, or wait for runs to end.",
    )


def _unknown_cost(of: Wallet | WalletBalance) -> UsageError:
    name = of.name if isinstance(of, Wallet) else of.wallet
    return UsageError(
        f"the wallet {name!r} pays for runs with a known price only, and what this one may cost is unknown",
        "Quote it first (it is measured for a minute), or set `budget.total`, or max_usd.",
    )
