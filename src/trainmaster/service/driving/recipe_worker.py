"""A process that reads recipes of strangers: each in a fork of its own, whose limits end it, not this one.

It gets requests on its standard input, one JSON object a line, and answers each with a line: what was read,
and what that took. A fork gives all of its memory back, and the kernel counts its CPU time.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.recipe import Recipe
from trainmaster.spec.recipe_source import own_configuration

MAX_EXPERIMENTS: Final = 1_000
#: What one recipe may take. 100 KiB of YAML need 0.7 s and 70 MB.
CPU_S: Final = 5
MEMORY_BYTES: Final = 512 << 20
#: What is read may be so long when it is written out: the server holds it.
ANSWER_BYTES: Final = 8 << 20
#: Requests of others come first.
_NICE: Final = 10


def main() -> None:
    """Answer until the input ends."""
    os.nice(_NICE)
    Recipe.from_text("experiments: {warm: {command: 'true'}}")  # what is imported late is there in all forks
    gc.freeze()
    for line in sys.stdin.buffer:
        answer, cpu_s = _forked(line)
        sys.stdout.buffer.write(b"%.6f %b\n" % (cpu_s, answer))
        sys.stdout.buffer.flush()


def _forked(line: bytes) -> tuple[bytes, float]:
    """What was read, empty if that took too much, and its CPU time in seconds."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - it does not come back
        try:
            os.close(receiver)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            answer = json.dumps(read(json.loads(line))).encode()
            if len(answer) <= ANSWER_BYTES:
                with os.fdopen(sender, "wb") as stream:
                    stream.write(answer)
        except Exception:  # noqa: BLE001 - the server's log has it; what was asked is not answered
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as stream:
        answer = stream.read()
    _, status, used = os.wait4(child, 0)
    return answer if status == 0 else b"", used.ru_utime + used.ru_stime


def read(asked: dict[str, Any]) -> dict[str, Any]:
    """The recipe as JSON, what was found in a file of another tool or a script, or what is wrong with it."""
    try:
        if "convert" in asked:
            from trainmaster.service.conversion.converting import conversion_of

            return {"made": asdict(conversion_of(asked["convert"], asked["file"]))}
        if "options" in asked:
            from trainmaster.service.first_recipe import options_in

            found = options_in(asked["options"], Path(asked["path"]) if asked["path"] else None)
            return {"made": [asdict(replace(each, default=_as_text(each.default))) for each in found]}
        recipe = Recipe.from_text(
            asked["text"],
            directory=asked["directory"],
            provider=asked["provider"],
            defaults=own_configuration(os.environ),
        )
    except RecipeError as error:
        mistakes = [[*asdict(each).values()] for each in error.mistakes]
        return {"file": error.file, "mistakes": mistakes}
    except UsageError as error:
        return {"wrong": error.args[0], "hint": error.hint}
    if len(recipe.experiments) > MAX_EXPERIMENTS:
        return too_large(f"{len(recipe.experiments):,} experiments, and a server takes {MAX_EXPERIMENTS:,}")
    return {"recipe": recipe.model_dump_json()}


def _as_text(value: object) -> str | None:
    return None if value is None else str(value)[:200]


def too_large(found: str) -> dict[str, Any]:
    """The error of a recipe that is read nowhere but where it was written."""
    right = "write what differs only in values as `parameters` of one experiment"
    return {"file": "recipe", "mistakes": [[1, 1, "", f"{found}; {right}"]]}


if __name__ == "__main__":
    main()
