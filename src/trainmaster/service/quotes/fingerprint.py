"""`Fingerprint`: what a measurement rests on. Another one voids it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmaster.executors import NodeCapacity
from trainmaster.spec import Experiment, Recipe

#: Came later: what was measured before is found by the fingerprint that it has.
_LATER: Final = ("model", "stage", "hadoop")
#: What every recipe has, in YAML or JSON. One that is sent to a server is written anew when a key is changed.
_RECIPE: Final = re.compile(rb'^(\{.*)?"?experiments"?\s*:', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of one experiment on one device; neither workers nor length nor budget change it.

    Attributes:
        exact: of code, command, setup, image, parameters, environment, data, batch, launcher, strategy and
            device. Values of secrets are left out.
        similar: of command, launcher, strategy and device only: jobs that differ in code or parameters.
    """

    exact: str
    similar: str


def code_of(recipe: Recipe, snapshot: Path) -> str:
    """Digest of the code without recipes: a new budget, or more epochs, are no other code.

    Args:
        recipe: as it was read.
        snapshot: the code, which often holds the recipe's file.
    """
    own = recipe.source_text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(snapshot):
        folders.sort()
        for name in sorted(files):
            path = Path(folder, name)
            label = str(path.relative_to(snapshot)).encode("utf-8", "surrogateescape")
            if path.is_symlink():
                digest.update(b"l\0%s\0%s\0" % (label, os.fsencode(path.readlink())))
                continue
            data = path.read_bytes()
            if path.suffix in (".yaml", ".yml") and (data == own or _RECIPE.search(data)):
                continue
            executable = b"x" if path.stat().st_mode & 0o100 else b"-"
            digest.update(b"f\0%s\0%s\0%s" % (label, executable, hashlib.sha256(data).digest()))
    return digest.hexdigest()


def fingerprint_of(recipe: Recipe, experiment: Experiment, code: str, device: str) -> Fingerprint:
    """The fingerprint of an experiment.

    Args:
        recipe: that it is of.
        experiment: one of it; how many workers it has does not matter.
        code: see `code_of`.
        device: what it runs on, such as `local_device`.
    """
    distributed = experiment.distributed
    common = {
        "command": experiment.command,
        "launcher": experiment.launcher,
        "strategy": distributed.strategy.value if distributed else None,
        "device": device,
    }
    exact = common | {
        "code": code,
        "setup": experiment.setup,
        "container": experiment.container,
        "parameters": {name: each.model_dump(mode="json") for name, each in experiment.parameters.items()},
        "env": experiment.env,
        "secrets": sorted(experiment.secrets),
        "data": {
            name: source.model_dump(
                mode="json", exclude={"model_uri", *(key for key in _LATER if getattr(source, key) is None)}
            )
            | {"directory": _resolved(recipe, source.directory)}
            for name, source in experiment.data.items()
        },
        "batch": experiment.batch.model_dump(mode="json") if experiment.batch else None,
    }
    if experiment.roles is not None:  # else what was measured by earlier versions would be forgotten
        exact["roles"] = experiment.roles.model_dump(
            mode="json", exclude=set() if experiment.roles.variables else {"variables"}
        )
    if experiment.until is not None and not experiment.builtin_values().get("steps"):
        exact["until"] = experiment.until  # where a length is known, only steps are measured
    return Fingerprint(_digest(exact), _digest(common))


def local_device(machine: NodeCapacity, root: Path = Path("/")) -> str:
    """This machine, as far as it matters to speed: processor, cores and GPUs.

    Args:
        machine: what it has.
        root: where ``proc`` is (tests make their own).
    """
    gpus = f"{len(machine.gpus)} x {_gpu(root)}" if machine.gpus else "no GPU"
    return f"local: {machine.cores} x {_processor(root)}, {gpus}"


def _digest(values: Mapping[str, object]) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _resolved(recipe: Recipe, directory: str | None) -> str | None:
    return None if directory is None else str((recipe.directory / Path(directory).expanduser()).resolve())


def _processor(root: Path) -> str:
    return _field(root / "proc/cpuinfo", "model name") or os.uname().machine


def _gpu(root: Path) -> str:
    try:
        cards = sorted((root / "proc/driver/nvidia/gpus").iterdir())
    except OSError:
        cards = []
    return next((name for card in cards if (name := _field(card / "information", "Model"))), "GPU")


def _field(path: Path, name: str) -> str:
    """The first ``name : value`` of a file of the kernel's."""
    try:
        with path.open(errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return " ".join(value.split())
    except OSError:
        pass
    return ""
