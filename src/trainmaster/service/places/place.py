"""`Place`: what one provider would give for a recipe, asked by `asked_place`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.places import IN_TIME_S
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.cluster.renting.plan import ClusterPlan
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Experiment, Recipe


#: Asks a place; see `asked_place`.
Ask = Callable[["OpenHome", "Recipe", Mapping[str, str]], "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """What a provider would give for a run.

    Attributes:
        provider: its name.
        machines: in words; empty if it would give none.
        usd_per_hour: of all of them.
        wait_s: until they could begin to start; None if it does not say.
        refusal: why it would give none; empty if it would. hint: what to do about that.
        nodes: how many machines of its workers.
        misses: which limits of the recipe it does not keep by its quote; empty if it does, or has none.
    """

    provider: str
    machines: str = ""
    usd_per_hour: float = 0.0
    wait_s: float | None = 0.0
    refusal: str = ""
    hint: str = ""
    nodes: int = 0
    misses: str = ""

    @property
    def waits_s(self) -> float:
        """What does not say may take for ever."""
        return math.inf if self.wait_s is None else self.wait_s

    @property
    def is_in_time(self) -> bool:
        """Whether it can begin soon, and keeps the limits of the recipe as far as is known."""
        return not self.refusal and not self.misses and self.waits_s <= IN_TIME_S

    @property
    def line(self) -> str:
        """For people.

        >>> Place("slurm", "2 x gpu", 0.0, 5400.0).line
        'slurm: 2 x gpu, $0 an hour; waits 1 h 30 min in its queue'
        >>> Place("hosts", refusal="1 host is needed, none is free").line
        'hosts: no, 1 host is needed, none is free'
        """
        if self.refusal or self.misses:
            return f"{self.provider}: no, {self.refusal or self.misses}"
        wait = f"; waits {format_duration(self.wait_s)} in its queue" if self.wait_s else ""
        unsaid = "; how long its queue is it does not say" if self.wait_s is None else ""
        return f"{self.provider}: {self.machines}, ${self.usd_per_hour:.4g} an hour{wait}{unsaid}"


def chosen(places: Sequence[Place]) -> Place | None:
    """The first that can begin in time; else that which waits least; None if none would give anything.

    If none keeps the limits of the recipe, the first that costs least: where that is nothing, it goes on.

    >>> a, b, c = Place("a", refusal="full"), Place("b", "m", 0.0, 7200.0), Place("c", "m", 3.0)
    >>> chosen([a, b, c]).provider, chosen([a, b]).provider, chosen([a])
    ('c', 'b', None)
    >>> d, e = Place("d", "m", 2.0, misses="its budget"), Place("e", "m", misses="its deadline")
    >>> chosen([d, b]).provider, chosen([d, e]).provider, chosen([a, d]).provider
    ('b', 'e', 'd')
    """
    could = [each for each in places if not each.refusal]
    if in_time := [each for each in could if each.is_in_time]:
        return in_time[0]
    keeping = [each for each in could if not each.misses]
    dearest_last = min(could, key=lambda each: each.usd_per_hour, default=None)
    return min(keeping, key=lambda each: each.waits_s, default=dearest_last)


def places_of(recipe: Recipe, experiment: Experiment) -> tuple[str, ...]:
    """Where an experiment may be."""
    return experiment.provider or recipe.places or (recipe.provider,)


def spreads_over_places(recipe: Recipe, experiment: Experiment) -> bool:
    """Whether it is a sweep over several. None of them is this machine: that is for whole runs."""
    places = places_of(recipe, experiment)
    many = experiment.serve is None and len(experiment.tasks(recipe.seed)) > 1
    apart = len(places) > 1 and not any(capabilities_of(name).is_here for name in places)
    return many and apart and (experiment.workers or 0) > 1


def asked_place(service: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> Place:
    """What a place would give; nothing is rented."""
    name = recipe.provider
    try:
        if capabilities_of(name).is_here:
            from trainmaster.service.quotes.worker_counts import with_fewest

            service.check(with_fewest(recipe), environ)
            return Place(name, "this machine")
        return _rented_place(service, recipe, environ)
    except TrainmasterError as error:
        return refused_place(name, error)


def _rented_place(service: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> Place:
    """The smallest machines that would do, or as many of them as are free now.

    Raises:
        UsageError: it would not.
        NoCapacityError: it has no room now.
        ProviderError: it cannot be reached.
    """
    from trainmaster.cluster.renting.plan import words
    from trainmaster.providers import get_provider
    from trainmaster.providers.base import CountsFree, Queue
    from trainmaster.service.driving.provider_connection import check_provider
    from trainmaster.service.quotes.worker_counts import with_fewest
    from trainmaster.service.renting.cheapest import plans_of
    from trainmaster.service.renting.kept_clusters import warm_clusters
    from trainmaster.service.renting.offer import offer_of
    from trainmaster.service.renting.provider_check import check_with_provider, requests_of

    home_place = service.place(recipe.provider, environ)
    check_provider(recipe.provider, home_place)
    probe = with_fewest(recipe)
    plans = plans_of(service, probe, environ)
    check_with_provider(service, plans, environ, service.team)
    warm = warm_clusters(service, plans, service.team)
    cold = [each for each in plans if each.name not in warm]
    wait_s: float | None = 0.0
    with closing(get_provider(recipe.provider, home_place)) as provider:
        requests = [request for plan in cold for request in requests_of(plan)]
        if isinstance(provider, CountsFree) and cold:
            free = iter(provider.free_nodes(requests))
            plans = tuple(_of_free(plan, free) if plan in cold else plan for plan in plans)
        elif isinstance(provider, Queue) and cold:
            wait_s = provider.queue_wait_s(requests)
    machines = " and ".join(dict.fromkeys(words(plan) for plan in plans))
    nodes = sum(plan.roles[0].count for plan in plans)
    return Place(recipe.provider, machines, offer_of(probe, plans).usd_per_hour, wait_s, nodes=nodes)


def _of_free(plan: ClusterPlan, free: Iterator[int]) -> ClusterPlan:
    """With as many machines as are free now; whole gangs of them."""
    roles = (replace(role, count=next(free) // role.needed * role.needed) for role in plan.roles)
    return replace(plan, roles=tuple(roles))


def halved(ask: Callable[[int], Place], most: int, gives_one: Callable[[], bool]) -> tuple[int, list[Place]]:
    """Ask for half as many machines, and half of these, until they begin in time, or there is one.

    Args:
        ask: asks a place; takes how often their number was halved.
        most: the largest number.
        gives_one: whether the place would give a single one: a place that never has all may have fewer.

    Returns:
        How often it was halved, and what the place said each time.
    """
    halvings, seen = 0, [ask(0)]
    if most > 1 and seen[0].refusal and not gives_one():
        return 0, seen
    while not seen[-1].is_in_time and most >> halvings > 1:
        halvings += 1
        seen.append(ask(halvings))
    return halvings, seen


def refused_place(name: str, error: TrainmasterError) -> Place:
    """One that would give nothing, and why."""
    words = first_line(error).removeprefix(f"provider: {name}: ")
    return Place(name, refusal=words.rstrip(":"), hint=error.hint)


def first_line(error: TrainmasterError) -> str:
    """The first line of its message."""
    return str(error.args[0]).partition("\n")[0]


def no_place(lines: Iterable[str]) -> UsageError:
    """None of the places would give anything; why, in a line each."""
    reasons = "\n".join(dict.fromkeys(lines))  # the whole, then each experiment, may be refused alike
    hint = "Name another place, or see with `trainmaster doctor --provider NAME` what one of these lacks."
    return UsageError(f"no place would give what this recipe asks for:\n{reasons}", hint)


def wait_words(wait_s: float | None) -> str:
    """How long a place lets one wait.

    >>> wait_words(None), wait_words(0.0), wait_words(5400.0)
    ('it does not say how long its queue is', '', '1 h 30 min in its queue')
    """
    if wait_s is None:
        return "it does not say how long its queue is"
    return f"{format_duration(wait_s)} in its queue" if wait_s else ""
