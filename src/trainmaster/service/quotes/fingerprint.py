"""`Fingerprint`: what a measurement rests on. Another one voids it."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.executors.capacity import NodeCapacity
from trainmaster.lazy import regex
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import UsageError

#: What every recipe has, in YAML or JSON. One that is sent to a server is written anew when a key is changed.
_RECIPE: Final = regex(rb'^(\{.*)?"?experiments"?\s*:', re.MULTILINE)
#: Files whose lines tell one code from another.
_CODE: Final = regex(
    r"\.(c|cc|cpp|cu|cxx|f90|go|h|hpp|ipynb|java|jl|js|lua|m|pl|py|r|rb|rs|scala|sh|ts)", re.IGNORECASE
)
#: What commands printed, such as the output of an earlier run: it makes no other code.
_PRINTED: Final = regex(r"\.(log|out)", re.IGNORECASE)
#: So many hashes of lines are kept: the share that two codes have in common is known to 0.06 by them.
_LINES: Final = 64
_MOST_BYTES: Final = 1 << 20
#: Shorter lines stand in every code.
_SHORT: Final = 4
#: Which checkpoint of another run it begins with, among its numbers.
BEGUN: Final = "checkpoint.from"
#: The variable by which scripts know where checkpoints are written.
_SAVES: Final = b"TRAINMASTER_CHECKPOINT_DIR"
_NUMBER: Final = regex(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class CodeFingerprint:
    """What a job's code is.

    Attributes:
        digest: of all files without recipes and logs: a new budget, or more epochs, are no other code.
        files: their paths.
        lines: the least hashes of the distinct lines of its scripts: a bottom-k sketch (Cohen and Kaplan,
            2007), from which `kinship` tells how much two codes have in common.
        names_checkpoints: a file of it, or the recipe, names the variable of where checkpoints are written.
    """

    digest: str
    files: frozenset[str] = frozenset()
    lines: tuple[int, ...] = ()
    names_checkpoints: bool = True


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of one experiment on one device; neither workers nor length nor budget change it.

    Attributes:
        exact: of code, command, setup, image, parameters, environment, data, batch, launcher, strategy and
            device, and the checkpoint that it begins with. Values of secrets are left out.
        similar: of the files that the command names (of its words, where it names none), launcher, strategy
            and device: jobs that may be other versions of this one.
        lines: see `CodeFingerprint`.
        numbers: in its command, parameters and environment, by name: one of them may be its length.
        may_save: it may write checkpoints: the variable of where they go is named, or its code is not here.
    """

    exact: str
    similar: str
    lines: tuple[int, ...] = field(default=(), compare=False)
    numbers: Mapping[str, float] = field(default_factory=dict, compare=False)
    may_save: bool = field(default=True, compare=False)


def kinship(one: Sequence[int], other: Sequence[int]) -> float:
    """Share of their lines that two codes have in common, estimated from the `CodeFingerprint.lines` of each.

    >>> kinship([1, 2, 3], [1, 2, 3]), kinship([1, 2], [3, 4])
    (1.0, 0.0)
    """
    if not one or not other:
        return float(not one and not other)
    least = sorted({*one, *other})[: max(len(one), len(other))]
    both = set(one) & set(other)
    return sum(line in both for line in least) / len(least)


def code_of(recipe: Recipe, snapshot: Path) -> CodeFingerprint:
    """What the code of a recipe is.

    Args:
        recipe: as it was read.
        snapshot: the code, which often holds the recipe's file.
    """
    own = recipe.source_text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256()
    paths: set[str] = set()
    lines: set[int] = set()
    saves = _SAVES in own
    for folder, folders, files in os.walk(snapshot):
        folders.sort()
        for name in sorted(files):
            path = Path(folder, name)
            if _PRINTED.fullmatch(path.suffix):
                continue
            label = str(path.relative_to(snapshot)).encode("utf-8", "surrogateescape")
            if path.is_symlink():
                digest.update(b"l\0%s\0%s\0" % (label, os.fsencode(path.readlink())))
                continue
            data = path.read_bytes()
            if path.suffix in (".yaml", ".yml") and (data == own or _RECIPE.search(data)):
                continue
            executable = b"x" if path.stat().st_mode & 0o100 else b"-"
            digest.update(b"f\0%s\0%s\0%s" % (label, executable, hashlib.sha256(data).digest()))
            paths.add(os.fsdecode(label))
            saves = saves or _SAVES in data
            if _CODE.fullmatch(path.suffix) and len(data) <= _MOST_BYTES:
                lines.update(map(_hash, filter(_counts, map(bytes.strip, data.splitlines()))))
    least = tuple(heapq.nsmallest(_LINES, lines))
    return CodeFingerprint(digest.hexdigest(), frozenset(paths), least, saves)


def fingerprint_of(recipe: Recipe, experiment: Experiment, code: CodeFingerprint, device: str) -> Fingerprint:
    """The fingerprint of an experiment.

    Args:
        recipe: that it is of.
        experiment: one of it; how many workers it has does not matter.
        code: see `code_of`.
        device: what it runs on, such as `local_device_name`.
    """
    distributed = experiment.distributed
    words = _words(experiment.command)
    common: dict[str, object] = {
        "launcher": experiment.launcher,
        "strategy": distributed.strategy.value if distributed else None,
        "device": device,
    }
    exact = common | {
        "command": experiment.command,
        "code": code.digest,
        "setup": experiment.setup,
        "container": experiment.container,
        "parameters": {name: each.model_dump(mode="json") for name, each in experiment.parameters.items()},
        "env": experiment.env,
        "secrets": sorted(experiment.secrets),
        "data": {
            name: source.model_dump(mode="json", exclude={"model_uri"})
            | {"directory": _resolved(recipe, source.directory)}
            for name, source in experiment.data.items()
        },
        "batch": experiment.batch.model_dump(mode="json") if experiment.batch else None,
        "roles": experiment.roles.model_dump(mode="json") if experiment.roles else None,
    }
    if experiment.beginning is not None:
        exact["begins_with"] = str(experiment.beginning)
    if experiment.ends_at is not None and not experiment.builtin_values().get("steps"):
        exact["until"] = str(experiment.ends_at)  # where a length is known, only steps are measured
    named = [word for word in words if os.path.normpath(word) in code.files]
    common["command"] = named or [_NUMBER.sub("N", word) for word in words]
    numbers = {name: value for name, value in _numbers(experiment, recipe, words) if math.isfinite(value)}
    # Without it no script knows where to write them; what an image or a package has in it is not seen.
    values = map(str, experiment.env.values())
    may_save = not named or code.names_checkpoints or any(_SAVES.decode() in each for each in values)
    return Fingerprint(_digest(exact), _digest(common), code.lines, numbers, may_save)


def local_device_name(machine: NodeCapacity, root: Path = Path("/")) -> str:
    """This machine, as far as it matters to speed: processor, cores and GPUs.

    Args:
        machine: what it has.
        root: where ``proc`` is (tests make their own).
    """
    gpus = f"{len(machine.gpus)} x {_gpu(root)}" if machine.gpus else "no GPU"
    return f"local: {machine.cores} x {_processor(root)}, {gpus}"


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # several lines of shell with quotes of its own
        return command.split()


def _numbers(experiment: Experiment, recipe: Recipe, words: Sequence[str]) -> Iterator[tuple[str, float]]:
    """By option or position in the command; by name of what a recipe has besides. Some may be too large."""
    for at, word in enumerate(words):
        name, equals, value = word.rpartition("=")
        if _NUMBER.fullmatch(value):
            before = words[at - 1] if at and not equals else ""
            yield (name if equals else before if before.startswith("-") else f"word {at}"), float(value)
    for name, value in experiment.env.items():
        if _NUMBER.fullmatch(str(value)):
            yield name, float(str(value))
    if experiment.beginning is not None:
        yield BEGUN, float(int(_digest({"begins_with": str(experiment.beginning)})[:8], 16))
    tasks = experiment.tasks(recipe.seed)
    for name, found in (tasks.parameters(0) or {}).items() if len(tasks) == 1 else ():
        if isinstance(found, int | float):
            yield name, float(found)
    with suppress(UsageError):  # the fewest workers need not share the batch evenly
        yield from ((name, float(many)) for name, many in experiment.builtin_values().items())


def _counts(line: bytes) -> bool:
    return len(line) >= _SHORT and not line.startswith(b"#")


def _hash(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line, digest_size=6).digest(), "big")


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
