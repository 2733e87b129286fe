"""`traffic_runs`: the runs that show what one worker of a type sends (FC2, section 5.2.4)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.budget import SWITCH_OFF_S, USUAL_LEASE_S
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.units import dollars, price

if TYPE_CHECKING:
    from trainmaster.spec import Recipe

#: So long a worker trains; what is paid for before and after that, and what a cap leaves for it.
MEASURED_S: Final = 120.0
_STARTS_S: Final = 60.0
_STARTS_AT_MOST_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class TrafficRun:
    """One worker of a type and one parameter server, for two minutes.

    Attributes:
        instance: the worker's type.
        overrides: what makes it of the recipe, as for ``--set``.
        usd: that it is expected to cost. cap_usd: that it costs at most.
    """

    instance: str
    overrides: tuple[str, ...]
    usd: float
    cap_usd: float


def traffic_runs(recipe: Recipe, experiment: str, types: Mapping[str, Any]) -> list[TrafficRun]:
    """The smallest clusters of types whose traffic is unknown; none if all is known.

    Args:
        recipe: that is quoted; where machines cost nothing, none are.
        experiment: of it.
        types: as ``types`` of ``quote --json``.
    """
    if not capabilities_of(recipe.provider).costs:
        return []
    server = types["servers"][0]
    below = f"experiments.{experiment}"
    found = recipe.experiments[experiment]
    usual = {
        f"{below}.distributed.workers": 1,
        f"{below}.distributed.parameter_servers": 1,
        f"{below}.distributed.hardware.ps.instance": [server],
        f"{below}.timeout": f"{MEASURED_S:.0f}s",
        f"{below}.retries": 0,
        **{f"{below}.{key}": None for key in ("promote", "require") if getattr(found, key) is not None},
        **{f"experiments.{name}": None for name in recipe.experiments if name != experiment},
        **({"on": None} if recipe.on else {}),
        "objective": "cheapest",
    }
    runs = []
    for instance in types["workers"]:
        if instance in types["traffic_mbps"]:
            continue
        usd_per_s = (types["usd_per_hour"][instance] + types["usd_per_hour"][server]) / 3600
        at_most_s = MEASURED_S + _STARTS_AT_MOST_S + USUAL_LEASE_S + SWITCH_OFF_S
        cap_usd = math.ceil(100 * usd_per_s * at_most_s) / 100
        own = {
            **usual,
            f"{below}.hardware.instance": [instance],
            "budget": {"total": f"${cap_usd:.2f}"},
        }
        changes = tuple(f"{key}={json.dumps(value)}" for key, value in own.items())
        runs.append(TrafficRun(instance, changes, usd_per_s * (MEASURED_S + _STARTS_S), cap_usd))
    return runs


def traffic_runs_offered(runs: list[TrafficRun]) -> str:
    """What measuring takes and costs, for people.

    >>> traffic_runs_offered([TrafficRun(name, (), 0.02, 0.2) for name in ("c4.xlarge", "m4.xlarge")])
    'c4.xlarge, m4.xlarge: 2 min each, $0.04, at most $0.40'
    """
    each = " each" if len(runs) > 1 else ""
    usd, most = sum(run.usd for run in runs), sum(run.cap_usd for run in runs)
    return f"{', '.join(run.instance for run in runs)}: 2 min{each}, {dollars(usd)}, at most {price(most)}"
