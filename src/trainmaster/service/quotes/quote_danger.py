"""`QuoteDanger`: tells when a forecast leaves the quote of a run, why and what to do, and when it is back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.db import Note
from trainmaster.service.quotes.quote_record import QuoteRecord, told_in_full
from trainmaster.spec.topics import QUOTE_IN_DANGER
from trainmaster.spec.units import dollars, format_duration

if TYPE_CHECKING:
    from trainmaster.control.loop.run_state import RunState
    from trainmaster.control.measure.progress import TaskProgress

#: A forecast that has grown by so much since it was told is told again.
_WORSE: Final = 1.2


class QuoteDanger:
    """Of one run.

    Args:
        run: its id.
        is_rented: whether its machines are given back when it is stopped.
        is_capped: whether ``budget.total`` ends it.
        is_gang: whether a task of it is several processes.
    """

    def __init__(self, run: str, *, is_rented: bool, is_capped: bool, is_gang: bool) -> None:
        self._run, self._is_rented, self._is_capped, self._is_gang = run, is_rented, is_capped, is_gang
        self._is_upset = False
        self._is_resumed = False
        self._told: tuple[float, float] | None = None

    def upset(self, binding: QuoteRecord | None) -> list[Note]:
        """Something has to begin again; told once, of a run that was quoted."""
        if binding is None or self._is_upset:
            return []
        self._is_upset = True
        return [Note("something has to begin again: the quote is looked at again once it trains steadily")]

    def changed(self) -> None:
        """Members went on elsewhere, or in another number: the next forecast is told, whatever it says."""
        self._is_upset, self._is_resumed = True, False

    def resumed(self, binding: QuoteRecord, time_s: float, cost_usd: float) -> None:
        """An earlier driver has forecast this (medians) last: what it has said then is known."""
        if not binding.holds(time_s, cost_usd):
            self._told, self._is_resumed = (time_s, cost_usd), True

    def compare(
        self, binding: QuoteRecord, forecast: QuoteRecord, other: str, why: Callable[[], str]
    ) -> list[Note]:
        """Tell when the forecast leaves the quote, and when it comes back.

        Args:
            binding: what is to be kept.
            forecast: of now.
            other: another cluster that was worth a thought, in words; empty if none.
            why: what makes steps slower, in words; asked only if the forecast has left the quote.
        """
        time_s, cost_usd = forecast.time_s.p50, forecast.cost_usd.p50
        late = not binding.time_s.holds(time_s)
        dear = not binding.cost_usd.holds(cost_usd)
        was_upset, self._is_upset = self._is_upset, False
        is_known, self._is_resumed = not was_upset or self._is_resumed, False
        if not late and not dear:
            if self._told is None and not was_upset:
                return []
            word = "still" if self._told is None else "again"
            self._told = None
            return [Note(f"{word} within the quote: {told_in_full(forecast.time_s, forecast.cost_usd)}")]
        before, self._told = self._told, (time_s, cost_usd)
        if before and is_known and time_s < _WORSE * before[0] and cost_usd <= _WORSE * before[1]:
            self._told = before
            return []
        what = [word for word, is_so in (("take longer", late), ("cost more", dear)) if is_so]
        will = f"it will {'still ' if before else ''}{' and '.join(what)}"
        most = [format_duration(binding.time_s.p95)] * late + [dollars(binding.cost_usd.p95)] * dear
        words = (
            f"{will} than quoted: {told_in_full(forecast.time_s, forecast.cost_usd)}; "
            f"quoted were at most {' and '.join(most)}{why()}. {self._choices(other)}"
        )
        return [Note(words, topic=QUOTE_IN_DANGER)]

    def _choices(self, other: str) -> str:
        """What the user can do about it."""
        stop = f"`trainmaster cancel {self._run}` stops it with its checkpoint"
        again = f"`trainmaster resume {self._run}` goes on from there"
        if not self._is_rented:
            return f"Let it go on; or {stop}, and {again} when the machine is less busy"
        such_as = f", such as {other}" if other else ""
        money = " (budget.total ends it in any case)" if self._is_capped else ""
        size = "distributed.workers" if self._is_gang else "workers"
        return (
            f"Let it go on{money}; or {stop} and gives the machines back, and {again}; or run it anew on "
            f"another cluster{such_as}: hardware.instance and {size} choose it"
        )


def drift_words(
    run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float, held: str = ""
) -> str:
    """What makes steps slower than they were; where none are, what others hold of their processors."""
    from trainmaster.control.measure.drift import DriftMeter  # most runs are over before

    for (name, number), found in progress.items():
        task = run_state.experiments[name].live.get(number)
        if task is None or task.started_at is None or found.trace is None:
            continue
        if told := DriftMeter().look(found.trace, found.directory, task.started_at, now):
            return f"; {told.words}"
    return f"; {held}" if held else ""


def missing_key(*, shows_steps: bool, has_length: bool) -> str:
    """What to do where no quote can be made; empty where its steps are few, but come."""
    if not shows_steps:
        return (
            "no steps are seen; show them with trainmaster.report(step=...), or set metrics.pattern to what "
            "it prints"
        )
    if not has_length:
        return (
            "how many steps it makes is unknown; set steps, or epochs with examples and batch, which the "
            "command may have as {{steps}}, {{epochs}}; or let it print `step 1/800`"
        )
    return ""
