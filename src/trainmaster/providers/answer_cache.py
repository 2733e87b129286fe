"""`cached_answer`: answers of providers, cached in files, so that not every plan asks them again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import write_private

T = TypeVar("T")


def cached_answer(
    file: Path,
    kind: type[T],
    asked: str,
    old_s: float,
    ask: Callable[[], T],
    check: Callable[[T], object] = lambda _: None,
) -> T:
    """An answer that is not old, from its file; else asked for, and kept there.

    Args:
        file: where it is kept.
        kind: of the answer: a dataclass, or a list of them.
        asked: who was asked for what: an answer to another question is none.
        old_s: after so many seconds it is asked for again.
        ask: the place.
        check: raises a `TrainmasterError` for an answer that lacks what is wanted now: it may be new there.

    Raises:
        TrainmasterError: it has to be asked for, and cannot be.
        OSError: it cannot be kept.
    """
    try:
        if 0 <= time.time() - file.stat().st_mtime < old_s:
            kept = typed(dict[str, Any], parsed_json(file.read_bytes()))
            if kept["asked"] == asked:
                found = typed(kind, kept["answer"])
                check(found)
                return found
    except (OSError, ValueError, KeyError, TrainmasterError):
        pass
    found = ask()
    write_private(file, json.dumps({"asked": asked, "answer": found}, default=asdict).encode())
    return found
