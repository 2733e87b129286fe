"""`ExperimentPhases`: what an experiment's phases that are no training took before, here and on machines.

Kept beside measurements of jobs: what others have shown of the same ``setup`` or image counts for all.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.decide.budget import USUAL_LEASE_S
from trainmaster.control.task.environment_hashes import environment_hashes, node_python, part_hash, setup_hash
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, NewMeasurement
from trainmaster.db.quote_rows import phase_of
from trainmaster.providers.capabilities import HOST, capabilities_of, measured_name
from trainmaster.providers.dead_man_switch import RENEWALS
from trainmaster.service.quotes.home_load import HomeLoad, PastDuration
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.frameworks import AUTO, RECORDED_ENGINE, engine_for
from trainmaster.spec.processor_limit import check_processor_limit
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.advisor.market.load import LoadCorrection
    from trainmaster.advisor.market.phases import ClusterWait, PhaseHistory, PhaseSample
    from trainmaster.advisor.market.workload import Workload
    from trainmaster.advisor.quote.forecast import Overhead
    from trainmaster.advisor.quote.quote import Rented
    from trainmaster.control.loop.recording import RecordedPhase
    from trainmaster.providers import Offer
    from trainmaster.service.open_home import OpenHome

_MOST_S: Final = 7 * 86_400.0
#: Machines that are given back together end within such a time.
_TOGETHER_S: Final = 15.0
#: The successor of one that is lost is asked for within that of its end: when it was announced, or missed.
_SUCCEEDS_S: Final = (-600.0, 120.0)
#: Until when the lease of one was noted that goes on by itself is at most so much after its end.
_LEFT_S: Final = USUAL_LEASE_S / RENEWALS
#: What a machine image holds.
_IN_IMAGE: Final = ("setup", "image")


@dataclass(frozen=True, slots=True)
class ExperimentPhases:
    """Of one experiment.

    Attributes:
        name: of the experiment.
        histories: of its phases, in their order.
        images: ids of images with all that ``setup`` and ``container`` bring, by provider and region.
        is_warm: its machines are there, an earlier run has kept them.
    """

    name: str
    histories: tuple[PhaseHistory, ...]
    images: Mapping[tuple[str, str], str]
    is_warm: bool = False

    def on_warm(self, contents: Collection[str] | None) -> ExperimentPhases:
        """The same on machines that an earlier run has kept.

        Args:
            contents: hashes of what is there; None: unknown, so what was seen on such machines is.
        """
        if contents is None:
            return replace(self, is_warm=True)
        histories = tuple(
            replace(each, is_there=each.content in contents) if each.name in _IN_IMAGE else each
            for each in self.histories
        )
        return replace(self, histories=histories, is_warm=True)

    def counted(self, workload: Workload) -> Workload:
        """The experiment as quotes see it, with that."""
        images = frozenset(self.images)
        return replace(workload, once=self.histories, prepared_in=images, is_warm=self.is_warm)

    def beside(self, provider: str, region: str, instance: str) -> Overhead:
        """What is no training on a machine there."""
        from trainmaster.advisor.quote.forecast import Overhead

        stays, offer = not capabilities_of(provider).rents, measured_name(provider, instance)
        saved = _IN_IMAGE if (provider, region) in self.images else ()
        beliefs = {
            (each.name, n): each.belief(offer, stays=stays or (self.is_warm and each.name in _IN_IMAGE))
            for n, each in enumerate(self.histories)
            if each.name not in saved and each.name != "machines"
        }
        before = tuple((name, belief) for (name, _), belief in beliefs.items() if name != "saving")
        after = [belief for (name, _), belief in beliefs.items() if name == "saving"]
        return Overhead(before, after[0])

    def words(self, rented: Rented) -> str:
        """What of ``setup`` and ``container`` is in a quote; empty if there is nothing to say."""
        can, offer = capabilities_of(rented.provider), measured_name(rented.provider, rented.instance)
        brought = [each for each in self.histories if each.name in _IN_IMAGE]
        took_s = sum(each.belief(offer, stays=self.is_warm or not can.rents).median for each in brought)
        if not brought or not took_s:
            return ""
        took = format_duration(took_s)
        if image := self.images.get((rented.provider, rented.region)):
            return f"{self.name}: machines start from {image}, without the {took} of setup and container"
        is_known = all(any(s.content == each.content for s in each.seen) for each in brought)
        why = "as seen before" if is_known else "a guess: not all of that was seen before"
        return f"{self.name}: counts {took} for setup and container on its machines, {why}"


def phases_of(
    service: OpenHome,
    recipe: Recipe,
    environ: Mapping[str, str],
    code: Path | None = None,
    load: HomeLoad | None = None,
) -> dict[str, ExperimentPhases]:
    """Those of a recipe's experiments.

    The provider is asked for images where they would save something; one that cannot be asked has none, and
    a run that makes one starts from none.

    Args:
        service: of the home.
        recipe: to be quoted.
        environ: of the caller: credentials.
        code: of a run; the recipe's as it is now without.
        load: to tell it for, see `HomeLoad.of`; None: that of now where its places are this machine.
    """
    load = load or HomeLoad.now().of(named_places(recipe))
    code = code or recipe.directory / recipe.code
    is_here = capabilities_of(recipe.provider).is_here
    found = {
        name: _histories(service, each, code, load, measured_name(recipe.provider, HOST), is_here=is_here)
        for name, each in recipe.experiments.items()
    }
    images = []
    brings = any(each.name in _IN_IMAGE for histories in found.values() for each in histories)
    if brings and capabilities_of(recipe.provider).bakes and not recipe.bake:
        from trainmaster.service.images import HomeImages

        with suppress(TrainmasterError):
            images = [one for one in HomeImages(service, environ).listed(recipe.provider) if one["is_ready"]]
    phases = {}
    for name, each in recipe.experiments.items():
        wanted = set(environment_hashes([each], code, service.team or ""))
        fitting = {
            (one["provider"], one["region"]): one["id"]
            for one in reversed(images)  # the newest counts
            if wanted and wanted.issubset(one["content"])
        }
        phases[name] = ExperimentPhases(name, found[name], fitting)
    return phases


def _histories(
    service: OpenHome, experiment: Experiment, code: Path, load: HomeLoad, offer: str, *, is_here: bool
) -> tuple[PhaseHistory, ...]:
    from trainmaster.advisor.market.phases import PhaseHistory

    check_processor_limit()
    parts: list[tuple[str, str, bool | None]] = []
    if experiment.container is not None:
        parts.append(("image", part_hash(experiment.container), None))
    if experiment.setup is not None:
        own = setup_hash(experiment.setup, node_python(experiment), code)
        is_made = _is_made(service, experiment, code) if is_here else None
        parts.append(("setup", part_hash(own), is_made))
    brought = (each for each in experiment.data.values() if not is_here or each.directory is None)
    parts += [("data", part_hash(each.identity), None) for each in brought]
    parts += [("machines", "", None), ("staging", "", None), ("saving", "", None)]
    histories = []
    for name, content, is_there in parts:
        past = _past(service.database, name, content)
        seen, busy = _at_load(service.database, past, load, offer)
        histories.append(PhaseHistory(name, content, seen, is_there, busy))
    return tuple(histories)


def _is_made(service: OpenHome, experiment: Experiment, code: Path) -> bool | None:
    """Whether the environment of a ``setup`` is on this machine; None if that is not known."""
    if experiment.container is not None:
        return None
    import sys

    name = setup_hash(experiment.setup or "", sys.version, code)
    return (service.home.cache / "environments" / name / "ready").is_file()


def seen_of(
    database: Database, phase: str, content: str, load: HomeLoad | None = None
) -> tuple[PhaseSample, ...]:
    """What was seen of a phase: of this content first, the newest first.

    Args:
        database: the database.
        phase: its name.
        content: hash of what it is.
        load: of this machine, at which that is asked; None: as it was seen.
    """
    past = _past(database, phase, content)
    if load is None:
        return tuple(sample for sample, _ in past)
    return _at_load(database, past, load, "")[0]


def _past(database: Database, phase: str, content: str) -> list[tuple[PhaseSample, str | None]]:
    """What was seen of a phase, each with its run."""
    from trainmaster.advisor.market.phases import PhaseSample

    found = []
    for row in database.phases(phase, content):
        with suppress(ValueError, TypeError, KeyError):  # a newer version wrote it
            data = json.loads(row["data"])
            if 0 <= data["seconds"] < _MOST_S:
                sample = PhaseSample(float(data["seconds"]), str(data["offer"]), str(data["content"]))
                found.append((sample, row["run_id"]))
    return found


def _at_load(
    database: Database, past: Sequence[tuple[PhaseSample, str | None]], load: HomeLoad, offer: str
) -> tuple[tuple[PhaseSample, ...], LoadCorrection]:
    """What was seen, as it would be at a load; and what that makes of a time at none on such a machine."""
    often = Counter((each.offer, each.content) for each, _ in past)
    # What was seen once is held against what else was: a setup may never be the same twice.
    times = [
        PastDuration((s.offer, s.content if often[s.offer, s.content] > 1 else None), run, s.seconds, s.offer)
        for s, run in past
    ]
    *shifts, busy = load.shifts(database, [*times, PastDuration(None, None, 0.0, offer, 0.0)])
    seen = tuple(
        replace(each, seconds=each.seconds * shift.factor, doubt=shift.doubt)
        for (each, _), shift in zip(past, shifts, strict=True)
    )
    return seen, busy


def brought_by(service: OpenHome, run: str, experiments: Iterable[str]) -> frozenset[str]:
    """Hashes of what ``setup`` and ``container`` of a run's experiments have brought to its machines."""
    with suppress(TrainmasterError):
        row = service.database.run_row(run)
        recipe, code = service.replicas.recipe(row), service.replicas.code(row)
        own = [recipe.experiments[name] for name in experiments if name in recipe.experiments]
        return frozenset(environment_hashes(own, code))
    return frozenset()


def brought_seconds(database: Database, contents: Iterable[str]) -> float:
    """What it took last to bring these to a machine that had none of them; 0 for what was never seen."""
    found = 0.0
    for content in contents:
        seen = [each for name in _IN_IMAGE for each in seen_of(database, name, content)]
        mine = [each.seconds for each in seen if each.content == content]
        found += mine[0] if mine else 0.0
    return found


def phase_rows(run: str | None, phases: Iterable[RecordedPhase]) -> list[NewMeasurement]:
    """Phases as the database keeps them, beside measurements of jobs."""
    rows = []
    for each in phases:
        took = each.took
        key, similar = phase_of(took.phase, took.content), phase_of(took.phase)
        data = {"seconds": round(took.seconds, 3), "offer": each.offer, "content": took.content}
        name = f"{each.attempt}/{took.phase}/{took.content}"
        rows.append(NewMeasurement(name, key, similar, each.experiment, run, json.dumps(data), each.at))
    return rows


def waited_for(
    database: Database,
    provider: str,
    offers: Iterable[Offer] = (),
    load: HomeLoad | None = None,
    engine: str = AUTO,
) -> tuple[ClusterWait, ...]:
    """What earlier runs waited for machines of a provider, the newest first.

    What makes one cluster of them takes part of that time: runs with another engine than a recipe with this
    ``engine`` has for as many machines count where there is none with it.

    Args:
        database: the database.
        provider: whose machines.
        offers: what they really have; without it, how large they were is unknown.
        load: of this machine; None: that of now.
        engine: of the recipe.
    """
    from trainmaster.advisor.market.phases import ClusterWait

    found, times, same = [], [], []
    can_do = capabilities_of(provider)
    scheduled = can_do.queues
    vcpus = {each.instance_type: each.vcpus for each in offers}
    for row in database.cluster_waits(provider):
        rental: dict[str, Any] = {}
        queued_s, machines, plan, losses = 0.0, 1, "", (0.0, 0)
        its = ""
        with suppress(ValueError, TypeError, LookupError, AttributeError):
            data = json.loads(row["data"])
            if scheduled or not can_do.rents:  # hosts of one's own are asked for until others have ended
                queued_s = _queued_s(data, row["waited_s"], "started_at" if scheduled else "asked_at")
            joined = [machine for machine in data.get("machines", ()) if machine.get("has_joined")]
            taken = [machine["rental"] for machine in joined]
            roles, plan = data["plan"]["roles"], data["plan"]["name"]
            its = data["plan"].get("engine", RECORDED_ENGINE)
            # the smallest come last, and all had to be there
            rentals = taken or [role["rentals"][0] for role in roles]
            rental = min(rentals, key=lambda each: vcpus.get(each.get("instance_type", ""), math.inf))
            machines = len({machine["seat"] for machine in joined}) or sum(role["count"] for role in roles)
            losses = _losses(data.get("machines", ()), rental["spot"])
        instance = str(rental.get("instance_type", ""))
        offer = measured_name(provider, instance)
        cores = vcpus.get(instance, 0.0)
        seen = ClusterWait(row["waited_s"] - queued_s, offer, provider, cores, queued_s, machines)
        same.append(its in ("", engine_for(engine, machines, scheduled=scheduled)))
        found.append(replace(seen, spot=bool(rental.get("spot")), used_s=losses[0], lost=losses[1]))
        first = row["id"].removesuffix(f".{plan}")  # that has waited: later ones have found it warm
        times.append(PastDuration((offer, machines), first, found[-1].seconds, offer))
    shifts = (load or HomeLoad.now()).shifts(database, times)
    return tuple(
        replace(each, seconds=each.seconds * shift.factor, doubt=shift.doubt)
        for each, shift, its in zip(found, shifts, same, strict=True)
        if its or not any(same)
    )


def _queued_s(data: Mapping[str, Any], waited_s: float, until: str) -> float:
    """What of the wait for a cluster was a queue: from asking until that time of its last machine."""
    asked_at = data["asked_at"]
    began = (each.get(until) or asked_at for each in data["machines"] if each.get("has_joined"))
    return max((at - asked_at for at in began if 0 <= at - asked_at <= waited_s), default=0.0)


def _losses(machines: Sequence[Mapping[str, Any]], spot: object) -> tuple[float, int]:
    """For how long machines of a cluster were there, all together, and how many were lost.

    What was lost has a successor in its seat, and was announced, or others of its cluster were there yet: all
    of them end together where a run pauses, and so does the only one. That was lost if its driver has seen
    that it was gone before its lease can have ended: on demand no loss is announced. What was slow, too
    small or not needed was given back.
    """
    used_s, lost = 0.0, 0
    ended = [each for each in machines if each["started_at"] and each["ended_at"]]
    for each in (one for one in ended if one["rental"]["spot"] == spot):
        end = each["ended_at"]
        used_s += max(end - each["started_at"], 0.0)
        asked = [m["asked_at"] - end for m in machines if m["seat"] == each["seat"] and m is not each]
        was_alone = not any(m["started_at"] < end < m["ended_at"] - _TOGETHER_S for m in ended)
        lease_left_s = (each.get("leased_until") or end) - _LEFT_S - end
        was_seen = each["has_joined"] and each.get("reason") and lease_left_s > 0
        why = (each["slow_at"] is not None, each.get("is_too_small"), each.get("is_surplus"))
        was_given_back = any(why)
        if not was_given_back and (each["is_leaving"] or not was_alone or was_seen):
            lost += any(_SUCCEEDS_S[0] <= after_s <= _SUCCEEDS_S[1] for after_s in asked)
    return used_s, lost
