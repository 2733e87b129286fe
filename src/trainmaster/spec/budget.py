"""What may be spent."""

from __future__ import annotations

from typing import Annotated

from trainmaster.spec.reading import Key, Noun, duration, money


class Budget(Noun):
    """Caps of a run; None is no cap.

    Attributes:
        total_usd: a hard cap on the whole run.
        usd_per_hour: a cap on what is rented at the same time.
        deadline_s: seconds from the start of the run.
        saving_usd: what machines may cost that wait for nothing but something to be saved.
    """

    total_usd: Annotated[float | None, Key("total", money)] = None
    usd_per_hour: Annotated[float | None, Key("per_hour", money)] = None
    deadline_s: Annotated[float | None, Key("deadline", duration())] = None
    saving_usd: Annotated[float | None, Key("saving", money)] = None
