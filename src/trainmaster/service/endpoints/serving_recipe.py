"""The recipe of a service that answers for one model, and of a run that asks one about files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from trainmaster.inference.errors import ModelError
from trainmaster.inference.model_servers import SCRIPT, served_file
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import RecipeError, UsageError
from trainmaster.spec.model_reference import ModelReference
from trainmaster.spec.node import compose
from trainmaster.spec.reading import Problems, noun
from trainmaster.spec.serve import HealthCheck, Serve

_COMMAND = "python -m trainmaster.inference --port {{port}} --name "
_READY = "/v2/health/ready"
_ASK = (
    'python -m trainmaster.inference --model-dir "$TRAINMASTER_DATA_MODEL" --files "$TRAINMASTER_DATA_FILES"'
)


def serving_recipe(
    model: str,
    name: str = "",
    *,
    replicas: int = 1,
    provider: str = "",
    command: str = "",
    health: str = "",
    code: str = "",
    model_files: Iterable[str] = (),
) -> str:
    """A recipe with one service.

    Args:
        model: a reference such as ``digits@production``, or RUN/EXPERIMENT/TASK.
        name: of the service; empty for that of the model.
        replicas: how many answer.
        provider: of machines; empty for the machine that drives, whose Python has what it has.
        command: that answers; empty for the inference server that knows the model's format.
        health: as recipes have it, a path or a mapping in one line; empty for that server's, or ``/``.
        code: directory where it works, with its own ``serve.py`` or what the command needs; empty for none.
        model_files: paths in the model, which say what a machine needs to read it.

    >>> print(serving_recipe("digits@3", provider="aws", replicas=2, model_files=["digits.skops"]))
    name: digits
    provider: aws
    experiments:
      serve:
        setup: pip install skops
        serve:
          command: "python -m trainmaster.inference --port {{port}} --name digits"
          health: "/v2/health/ready"
          model: digits@3
          replicas: 2
    <BLANKLINE>
    """
    name = name or service_name(model)
    lines = [f"name: {name}"]
    if provider:
        lines.append(f"provider: {provider}")
    if code:
        lines.append(f"code: {json.dumps(code)}")
    lines += ["experiments:", "  serve:"]
    if not command and provider and not capabilities_of(provider).is_here:
        lines.append(f"    setup: pip install {package_for(model_files)}")
    asked, may_take_s = _health(health or ("/" if command else _READY))
    lines += [
        "    serve:",
        f"      command: {json.dumps(command or _COMMAND + name)}",
        f"      health: {json.dumps(asked)}",
        *([f"      hang: {2 * may_take_s}s"] if may_take_s >= Serve.model_fields["hang_s"].default else []),
        f"      model: {model}",
        f"      replicas: {replicas}",
    ]
    return "\n".join(lines) + "\n"


def _health(text: str) -> tuple[object, float]:
    """A health check of the command line as recipes have it, and how long after one the next has ended (s).

    >>> _health("/ready"), _health("{path: /generate, body: {inputs: hi}, every: 3s}")
    (('/ready', 7.0), ({'path': '/generate', 'body': {'inputs': 'hi'}, 'every': '3s'}, 8.0))
    """
    node, problems = compose(text, "--health"), Problems()
    with problems.goes_on():
        found = noun(HealthCheck)(node, (), problems)
    if problems.mistakes:
        raise RecipeError("--health", problems.in_order())
    return node.data, found.timeout_s + found.every_s


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
    if provider and not capabilities_of(provider).is_here:
        lines.append(f"    setup: pip install {package_for(model_files)}")
    lines.append(f"    command: {_ASK}")
    return "\n".join(lines) + "\n"


def must_be_servable(model_files: Iterable[str], code: Path | None = None) -> None:
    """Refuse a model for which nothing answers unless there is a command.

    Args:
        model_files: paths in the model.
        code: directory that may have a ``serve.py``.

    Raises:
        UsageError: saying what the model has, and what is served.
    """
    if code is not None and (code / SCRIPT).is_file():
        return
    try:
        served_file(model_files, "the model")
    except ModelError as error:
        raise UsageError(
            f"it cannot be served: {error}",
            "Have a serve.py beside the code (`--code DIR`), or a command that answers (`--command`).",
        ) from None


def service_name(model: str) -> str:
    """What a service of a model is called.

    >>> service_name("My_Digits@production"), service_name("train-7f3a01c2d9/train/0")
    ('my-digits', 'train-7f3a01c2d9')
    """
    first = re.split("[@/]", model)[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:63].rstrip("-") or "model"


def package_for(model_files: Iterable[str]) -> str:
    """What reads a model, for pip, by the names of its files."""
    names = list(model_files)
    for ending, package in ((".onnx", "onnxruntime"), (".skops", "skops"), ("saved_model.pb", "tensorflow")):
        if any(name.endswith(ending) for name in names):
            return package
    return "numpy"
