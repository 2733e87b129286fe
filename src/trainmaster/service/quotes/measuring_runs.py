"""`measuring_runs`: short runs that show a job's steps, or what one worker of a type sends (FC2, 5.2.4)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from trainmaster.control.decide.budget import SWITCH_OFF_S, USUAL_LEASE_S
from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import Recipe
from trainmaster.spec.units import dollars, price

#: So long a worker trains to show its steps, or its traffic; what is paid for before and after that, and what
#: a cap leaves for it.
STEPS_S: Final = 60.0
MEASURED_S: Final = 120.0
_STARTS_S: Final = 60.0
_STARTS_AT_MOST_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class MeasuringRun:
    """One worker of a type, with one parameter server where there are some; or a point that narrows a quote.

    Attributes:
        experiment: that is measured. instance: the worker's type.
        overrides: what makes it of the recipe, as for ``--set``.
        usd: that it is expected to cost. cap_usd: that it costs at most.
        seconds: that it trains. workers: of a gang that needs all of them, or of a point; 0: one.
        narrows: it is a point of a job that has a quote.
    """

    experiment: str
    instance: str
    overrides: tuple[str, ...]
    usd: float
    cap_usd: float
    seconds: float = MEASURED_S
    workers: int = 0
    narrows: bool = False

    @property
    def words(self) -> str:
        """Its machines, for people."""
        more = f" with {self.workers} worker{'s' * (self.workers != 1)}" if self.workers else ""
        return f"{self.instance}{more}"


def types_to_measure(quote: Mapping[str, Any]) -> dict[str, Any]:
    """By experiment, of an answer of ``quote --json``: what is not known well, or what Scala-Opt chose from.

    >>> types_to_measure({"policy": "quote", "to_measure": {"second": {"workers": ["m4.large"]}}})
    {'second': {'workers': ['m4.large']}}
    """
    if unknown := quote.get("to_measure"):
        return dict(unknown)
    if not str(quote.get("policy", "")).startswith("scala-opt"):
        return {}
    return {name: one["types"] for name, one in quote["experiments"].items() if one.get("types")}


def of_each_job(types: Mapping[str, Any], jobs: Mapping[str, str]) -> dict[str, Any]:
    """Without what the measurement of another experiment shows, too: the same job on the same machines.

    Args:
        types: by experiment, as `measuring_runs` takes them.
        jobs: exact fingerprints, by experiment, of those that have one.

    >>> of_each_job({"a": {"workers": ["x"]}, "b": {"workers": ["x"]}}, {"a": "1", "b": "1"})
    {'a': {'workers': ['x']}}
    >>> [*of_each_job({"a": {"workers": ["x"]}, "b": {"workers": ["y"]}}, {"a": "1", "b": "1"})]
    ['a', 'b']
    """
    found: dict[str, Any] = {}
    for name, each in types.items():
        if not any(each == other and jobs.get(name, name) == jobs.get(a, a) for a, other in found.items()):
            found[name] = each
    return found


def is_point(types: Mapping[str, Any]) -> bool:
    """Whether what is to be measured of an experiment would make a quote that there is narrower.

    >>> is_point({"processes": 2, "seconds": 70.0}), is_point({"processes": 2})
    (True, False)
    """
    return "seconds" in types


def measuring_runs(recipe: Recipe, types: Mapping[str, Any]) -> list[MeasuringRun]:
    """The smallest clusters of types that are to be measured, and points; none if all is known.

    Points and gangs are left out whose caps come to more than ``budget.total``.

    Args:
        recipe: that is quoted; where machines cost nothing, none are.
        types: by experiment, as ``types`` of ``quote --json``.
    """
    left_usd = recipe.budget.total_usd if recipe.budget is not None else None
    found = []
    for name, each in types.items():
        if not capabilities_of(_provider(recipe, each)).costs:
            continue
        for run in _runs_of(recipe, name, each):
            if run.workers and left_usd is not None:
                if run.cap_usd > left_usd:
                    continue
                left_usd -= run.cap_usd
            found.append(run)
    return found


def _provider(recipe: Recipe, types: Mapping[str, Any]) -> str:
    """Whose types they are: of several places the one that the quote is for."""
    return str(types.get("provider", recipe.provider)) if recipe.places else recipe.provider


def _runs_of(recipe: Recipe, experiment: str, types: Mapping[str, Any]) -> list[MeasuringRun]:
    server = next(iter(types["servers"]), None)
    workers, machines = types.get("processes", 0), types.get("machines", {})
    seconds = types.get("seconds", MEASURED_S if types.get("traffic", True) else STEPS_S)
    below = f"experiments.{experiment}"
    found = recipe.experiments[experiment]
    unwanted = ("promote", "require", "approval", "search", "after")
    usual = {
        **({f"{below}.distributed.workers": workers or 1} if found.distributed else {}),
        **({f"{below}.distributed.parameter_servers": 1} if server and not workers else {}),
        **({f"{below}.distributed.hardware.ps.instance": [server]} if server else {}),
        f"{below}.timeout": f"{seconds:.0f}s",
        f"{below}.retries": 0,
        **{f"{below}.{key}": None for key in unwanted if getattr(found, key)},
        # One task of a sweep shows it. `samples` has two places, and both agree.
        **{f"{below}.{key}": 1 for key in ("samples", "parameters.samples") if found.parameters},
        **{f"experiments.{name}": None for name in recipe.experiments if name != experiment},
        **({"on": None} if recipe.on else {}),
        **({"provider": _provider(recipe, types)} if recipe.places else {}),
        "objective": "cheapest",
    }
    runs = []
    for instance in types["workers"]:
        if instance in types["traffic_mbps"]:
            continue
        counts = machines or Counter(filter(None, (instance, server)))
        usd_per_s = sum(types["usd_per_hour"][name] * many for name, many in counts.items()) / 3600
        at_most_s = seconds + _STARTS_AT_MOST_S + USUAL_LEASE_S + SWITCH_OFF_S
        cap_usd = math.ceil(100 * usd_per_s * at_most_s) / 100
        own = {
            **usual,
            f"{below}.hardware.instance": [instance],
            "budget": {"total": f"${cap_usd:.2f}"},
        }
        changes = tuple(f"{key}={json.dumps(value)}" for key, value in own.items())
        usd = usd_per_s * (seconds + _STARTS_S)
        narrows = is_point(types)
        runs.append(MeasuringRun(experiment, instance, changes, usd, cap_usd, seconds, workers, narrows))
    return runs


def measuring_runs_offered(runs: list[MeasuringRun]) -> str:
    """What measuring takes and costs, for people.

    >>> runs = [MeasuringRun("train", name, (), 0.02, 0.2) for name in ("c4.xlarge", "m4.xlarge")]
    >>> measuring_runs_offered(runs)
    'c4.xlarge, m4.xlarge: 2 min each, $0.04, at most $0.40'
    >>> measuring_runs_offered([*runs, MeasuringRun("more", "m4.xlarge", (), 0.02, 0.2)])
    'train on c4.xlarge, m4.xlarge; more on m4.xlarge: 2 min each, $0.06, at most $0.60'
    >>> measuring_runs_offered([MeasuringRun("train", "m4.xlarge", (), 0.04, 0.4, 60.0, workers=4)])
    'm4.xlarge with 4 workers: 1 min, $0.04, at most $0.40'
    """
    each = " each" if len(runs) > 1 else ""
    usd, most = sum(run.usd for run in runs), sum(run.cap_usd for run in runs)
    types: dict[str, list[str]] = {}
    for run in runs:
        types.setdefault(run.experiment, []).append(run.words)
    which = [
        ", ".join(each) if len(types) == 1 else f"{name} on {', '.join(each)}" for name, each in types.items()
    ]
    minutes = "/".join(f"{seconds / 60:.0f}" for seconds in sorted({run.seconds for run in runs}))
    return f"{'; '.join(which)}: {minutes} min{each}, {dollars(usd)}, at most {price(most)}"
