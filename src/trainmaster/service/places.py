"""`settled_place`: which of several providers a run is on: the first that can start it in time.

All of a run is in one place; `next_place` says where it goes when that has no machines later. What each
would give is told, so that the choice can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.places import IN_TIME_S
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.service import Service
    from trainmaster.spec import Recipe


@dataclass(frozen=True, slots=True)
class Place:
    """What a provider would give for a run.

    Attributes:
        provider: its name.
        machines: in words; empty if it would give none.
        usd_per_hour: of all of them at most.
        wait_s: until they could begin to start; None if it does not say.
        refusal: why it would give none; empty if it would. hint: what to do about that.
    """

    provider: str
    machines: str = ""
    usd_per_hour: float = 0.0
    wait_s: float | None = 0.0
    refusal: str = ""
    hint: str = ""

    @property
    def _waits_s(self) -> float:
        """What does not say may take for ever."""
        return math.inf if self.wait_s is None else self.wait_s

    @property
    def is_in_time(self) -> bool:
        """Whether it can begin soon."""
        return not self.refusal and self._waits_s <= IN_TIME_S

    @property
    def line(self) -> str:
        """For people.

        >>> Place("slurm", "2 x gpu", 0.0, 5400.0).line
        'slurm: 2 x gpu, $0 an hour; waits 1 h 30 min in its queue'
        >>> Place("hosts", refusal="0 of 1 hosts are free").line
        'hosts: no, 0 of 1 hosts are free'
        """
        if self.refusal:
            return f"{self.provider}: no, {self.refusal}"
        wait = f"; waits {format_duration(self.wait_s)} in its queue" if self.wait_s else ""
        unsaid = "; how long its queue is it does not say" if self.wait_s is None else ""
        return f"{self.provider}: {self.machines}, ${self.usd_per_hour:.4g} an hour{wait}{unsaid}"


def chosen(places: list[Place]) -> Place | None:
    """The first that can begin in time; else that which waits least; None if none would give anything.

    >>> a, b, c = Place("a", refusal="full"), Place("b", "m", 0.0, 7200.0), Place("c", "m", 3.0)
    >>> chosen([a, b, c]).provider, chosen([a, b]).provider, chosen([a])
    ('c', 'b', None)
    """
    could = [each for each in places if not each.refusal]
    in_time = [each for each in could if each.is_in_time]
    return in_time[0] if in_time else min(could, key=lambda each: each._waits_s, default=None)


def settled_place(
    service: Service, recipe: Recipe, environ: Mapping[str, str], tell: Callable[[str], None]
) -> Recipe:
    """The recipe with one provider; places after one that can begin in time are not asked.

    It becomes an override: a run that goes on later, or elsewhere, goes on in the same place.

    Args:
        service: of the user's home.
        recipe: as read.
        environ: of the caller.
        tell: takes a line for each place that was asked, and one for the choice.

    Raises:
        UsageError: none would give what it asks for.
    """
    if not recipe.places:
        return recipe
    seen: list[Place] = []
    for name in recipe.places:
        seen.append(asked_place(service, in_place(recipe, name), environ))
        tell(f"place {seen[-1].line}")
        if seen[-1].is_in_time:
            break
    found = chosen(seen)
    if found is None:
        raise _none([each.line for each in seen])
    tell(f"it runs on {found.provider}, the first that can begin in time" if found.is_in_time else
         f"it runs on {found.provider}, which waits least")  # fmt: skip
    left = tuple(name for name in recipe.places if name != found.provider)
    return in_place(recipe, found.provider).model_copy(update={"places_left": left})


def next_place(
    service: OpenHome,
    recipe: Recipe,
    environ: Mapping[str, str],
    why: str,
    tell: Callable[[str], None],
    *,
    has_wallet: bool = False,
) -> Recipe | None:
    """The recipe in the next of its places that can begin in time, where the present one has no machines.

    One that costs is taken only if ``budget.total`` says how much: there is no question any more.

    Args:
        service: of the run's home and team.
        recipe: of the run.
        environ: of the caller.
        why: there are no machines.
        tell: takes a line for each place that was asked.
        has_wallet: the run is paid for from one, which was asked for what the present place costs.

    Returns:
        None if no other place would do now.
    """
    capped = recipe.budget is not None and recipe.budget.total_usd is not None
    for name in recipe.places_left:
        place = asked_place(service, in_place(recipe, name), environ)
        if place.usd_per_hour and has_wallet:
            place = replace(place, refusal="it costs, and the wallet was not asked for that")
        elif place.usd_per_hour and not capped:
            place = replace(place, refusal="it costs, and `budget.total` does not say how much it may")
        tell(f"place {place.line}")
        if place.is_in_time:
            left = tuple(each for each in recipe.places_left if each != name)
            given_up = (*recipe.places_given_up, f"{recipe.provider}: {why}")
            update = {"places_left": left, "places_given_up": given_up}
            return in_place(recipe, name).model_copy(update=update)
    return None


def check_places(
    service: Service, recipe: Recipe, environ: Mapping[str, str], *, has_code: bool = True
) -> list[str]:
    """Refuse what no place of a recipe could ever run, as `check_run` does; notes for the user.

    Raises:
        UsageError: saying why of each.
    """
    from trainmaster.service.renting import check_run

    if not recipe.places:
        return check_run(service, recipe, environ, has_code=has_code)
    notes: list[str] = []
    refusals: dict[str, TrainmasterError] = {}
    for name in recipe.places:
        try:
            notes += check_run(service, in_place(recipe, name), environ, has_code=has_code)
        except TrainmasterError as error:
            refusals[name] = error
    lines = [_refused(name, error).line for name, error in refusals.items()]
    if len(refusals) < len(recipe.places):
        return [*dict.fromkeys(notes), *lines]
    if len({str(error) for error in refusals.values()}) == 1:  # it is not the place
        raise next(iter(refusals.values()))
    raise _none(lines)


def _none(lines: list[str]) -> UsageError:
    reasons = "\n".join(lines)
    return UsageError(f"no place would give what this recipe asks for:\n{reasons}", "Name another one.")


def in_place(recipe: Recipe, provider: str) -> Recipe:
    """The recipe with one of its places."""
    overrides = (*recipe.overrides, f"provider={provider}")
    return recipe.model_copy(update={"provider": provider, "places": (), "overrides": overrides})


def asked_place(service: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> Place:
    """What a place would give; nothing is rented."""
    name = recipe.provider
    try:
        if capabilities_of(name).is_here:
            from trainmaster.service.quotes.worker_counts import with_fewest

            service.check(with_fewest(recipe), environ)
            return Place(name, "this machine")
        from trainmaster.service.renting import asked_of

        return Place(name, *asked_of(service, recipe, environ, datetime.now(UTC).date()))
    except TrainmasterError as error:
        return _refused(name, error)


def _refused(name: str, error: TrainmasterError) -> Place:
    words = str(error.args[0]).removeprefix(f"provider: {name}: ")
    return Place(name, refusal=words.partition("\n")[0].rstrip(":"), hint=error.hint)
