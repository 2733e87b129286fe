"""What is wrong with a recipe, as lines that a form shows."""

from __future__ import annotations

from trainmaster.spec.errors import RecipeError, TrainmasterError


def mistakes_of(error: Exception | None) -> list[str]:
    """Lines of an error that a form led to; none without one."""
    if error is None:
        return []
    if isinstance(error, RecipeError):
        return [f"line {m.line}, column {m.column}: {m.message}" for m in error.mistakes]
    if isinstance(error, TrainmasterError):
        return [*str(error.args[0]).splitlines(), *([error.hint] if error.hint else [])]
    return [str(error)]
