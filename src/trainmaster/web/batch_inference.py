"""The recipe of a run that asks a registered model about the files of a volume."""

from __future__ import annotations

import json
from collections.abc import Iterable

from trainmaster.service.endpoints.serving_recipe import package_for
from trainmaster.spec.model_reference import ModelReference

_ASK = (
    'python -m trainmaster.inference --model-dir "$TRAINMASTER_DATA_MODEL" --files "$TRAINMASTER_DATA_FILES"'
)


def batch_recipe(model: str, files: str, provider: str = "", model_files: Iterable[str] = ()) -> str:
    """A recipe with one task, whose output are the answers.

    Args:
        model: a reference such as ``digits@production``.
        files: a volume.
        provider: of machines; empty for the machine that drives, whose Python has what it has.
        model_files: paths in the model, which say what a machine needs to read it.

    Raises:
        UsageError: the model is no reference.

    >>> print(batch_recipe("digits@3", "letters", "aws", ["digits.skops"]).replace(_ASK, "..."))
    name: ask-digits
    provider: aws
    experiments:
      answers:
        data: {model: {model: digits@3}, files: {volume: "letters"}}
        setup: pip install skops
        command: ...
    <BLANKLINE>
    """
    asked = ModelReference.parse(model)
    lines = [f"name: ask-{asked.name}", "experiments:", "  answers:"]
    lines.append(f"    data: {{model: {{model: {asked}}}, files: {{volume: {json.dumps(files)}}}}}")
    if provider:
        lines.insert(1, f"provider: {provider}")
        lines.append(f"    setup: pip install {package_for(model_files)}")
    lines.append(f"    command: {_ASK}")
    return "\n".join(lines) + "\n"
