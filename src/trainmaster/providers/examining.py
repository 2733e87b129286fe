"""`examined`: what can be said of a provider's place before anything is rented, and what to do about it.

A provider says more than whether it answers by one method, `Examined.examine`; one without it is asked what
every provider can be asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol, runtime_checkable

from trainmaster.dataclass import dataclass
from trainmaster.providers.base import CLOCKS_DIFFER_S, Provider
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.units import format_duration

#: Clocks that differ by more are told, in seconds.
_DIFFERS_S: Final = 5.0
#: The oldest driver of NVIDIA's that runs what was built for a version of CUDA, by its major.
_DRIVERS: Final = {11: (450, 80), 12: (525, 60), 13: (580, 65)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        what: it was. found: what was seen.
        ok: nothing is wrong with it.
        advice: what to do next; may be there also if nothing is wrong.
    """

    what: str
    found: str
    ok: bool = True
    advice: str = ""


@runtime_checkable
class Examined(Protocol):
    """What a provider may do, too: say what `trainmaster doctor` shows of its place."""

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """Credentials, rights, quota, network between nodes, clock, drivers; changes nothing.

        Args:
            builds: Python packages that the recipe's frameworks need, each with the version of CUDA that its
                image is built for; empty if that is not known.

        Raises:
            TrainmasterError: it cannot be looked at at all.
        """


def examined(
    provider: Provider, builds: Mapping[str, str], told: AbstractContextManager[None] | None = None
) -> list[Finding]:
    """What there is to say of a provider; raises for nothing that it finds.

    Args:
        provider: it.
        builds: as of `Examined`.
        told: puts what it raises into other words.
    """
    try:
        with told or nullcontext():
            provider.check_settings()
            provider.check_up()
            if isinstance(provider, Examined):
                return provider.examine(builds)
    except TrainmasterError as error:
        return [refused("login", error)]
    return [Finding("login", "it answers and takes the credentials"), *unseen_drivers(builds)]


def refused(what: str, error: TrainmasterError) -> Finding:
    """What an error says."""
    words = " ".join(Exception.__str__(error).split())
    return Finding(what, words, ok=False, advice=error.hint)


def found_by(check: Callable[[], object], what: str, fine: str) -> Finding:
    """What a check says that raises if something is wrong.

    Args:
        check: of a place, before anything is asked for.
        what: it looks at.
        fine: what to say if nothing is wrong.
    """
    try:
        check()
    except TrainmasterError as error:
        return refused(what, error)
    return Finding(what, fine)


def clock_finding(ahead_s: float, whose: str) -> Finding:
    """How a clock compares with ours.

    Args:
        ahead_s: how far it is ahead.
        whose: it is.

    >>> clock_finding(0.4, "n1"), clock_finding(-400.0, "n1").ok
    (Finding(what='clock', found='n1: as ours', ok=True, advice=''), False)
    """
    if abs(ahead_s) <= _DIFFERS_S:
        return Finding("clock", f"{whose}: as ours")
    words = f"{whose}: {format_duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} ours"
    return Finding(
        "clock", words, abs(ahead_s) <= CLOCKS_DIFFER_S, "Set it by NTP, there or on this machine."
    )


def scratch_finding(whose: str, user: str, may: bool, scratch: str, file: str) -> Finding:
    """Whether a user may write where ours is to lie on a node.

    >>> scratch_finding("n1", "ada", False, "/scratch", "slurm.yaml").found
    'n1: ada may not write below /scratch'
    """
    words = f"{whose}: {user} {'may' if may else 'may not'} write below {scratch}"
    advice = "" if may else f"Name as `scratch` in {file} a directory that tasks may write to."
    return Finding("rights", words, may, advice)


def room_finding(what: str, used: float, limit: float, whose: str) -> Finding:
    """How much of a quota is left.

    >>> room_finding("pods", 3.0, 4.0, "namespace a").found, room_finding("pods", 4.0, 4.0, "b").ok
    ('namespace a: 3 of 4 pods are used', False)
    """
    is_free = used < limit
    advice = "" if is_free else "Give back what is there, or ask for more."
    return Finding("quota", f"{whose}: {used:g} of {limit:g} {what} are used", is_free, advice)


def check_room(quota: str, needed: float, used: float, limit: float, hint: str) -> None:
    """Refuse what a quota has no room for.

    Args:
        quota: as it is called.
        needed: of it.
        used: of it by now.
        limit: of it.
        hint: what to do.

    Raises:
        UsageError: how much is needed, and how much is free.
    """
    if needed > limit - used:
        free = max(limit - used, 0)
        raise UsageError(
            f"{quota} does not suffice: {needed:.15g} are needed, {free:.15g} of {limit:.15g} are free", hint
        )


def driver_finding(whose: str, driver: str, builds: Mapping[str, str]) -> Finding:
    """Whether a driver runs what was built for versions of CUDA.

    Args:
        whose: it is.
        driver: its version.
        builds: versions of CUDA by what was built for them; empty ones are not known.

    >>> driver_finding("n1", "470.57.02", {"torch": "12.4"}).found
    'n1: driver 470.57.02 is too old for torch, which is built for CUDA 12.4'
    >>> driver_finding("n1", "550.54.15", {"torch": "12.4"}).found
    'n1: driver 550.54.15, which runs torch (CUDA 12.4)'
    """
    known = {name: cuda for name, cuda in builds.items() if _numbers(cuda)[0] in _DRIVERS}
    for name, cuda in known.items():
        oldest = _DRIVERS[_numbers(cuda)[0]]
        if _numbers(driver) < oldest:
            return Finding(
                "driver",
                f"{whose}: driver {driver} is too old for {name}, which is built for CUDA {cuda}",
                ok=False,
                advice=f"Install driver {_dotted(oldest)} or newer there, or {name} for an older CUDA.",
            )
    runs = ", ".join(f"{name} (CUDA {cuda})" for name, cuda in known.items())
    return Finding("driver", f"{whose}: driver {driver}" + (f", which runs {runs}" if runs else ""))


def unseen_drivers(builds: Mapping[str, str]) -> list[Finding]:
    """What drivers have to be where none can be seen before a machine is there.

    >>> unseen_drivers({"torch": "12.4", "jax": ""})[0].found
    'not seen before a machine is there; torch is built for CUDA 12.4: 525.60 or newer'
    """
    return [
        Finding(
            "driver",
            f"not seen before a machine is there; {name} is built for CUDA {cuda}: "
            f"{_dotted(_DRIVERS[_numbers(cuda)[0]])} or newer",
        )
        for name, cuda in builds.items()
        if _numbers(cuda)[0] in _DRIVERS
    ]


def cuda_of_image(image: str) -> str:
    """The version of CUDA that an image says it is built for; empty if it does not.

    >>> cuda_of_image("docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"), cuda_of_image("me/x:1")
    ('12.4', '')
    """
    found = re.search(r"cuda-?:?(\d+(?:\.\d+)?)", image)
    return found[1] if found else ""


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2])) or (0,)
