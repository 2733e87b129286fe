"""Capsules: all that a run was made of, and what came of it, in one file that runs again elsewhere.

A zip with ``recipe.yaml`` (data of fixed versions), ``code/`` and ``capsule.json``: seed, environment, data,
results. Values of secrets, directories of this machine and the models themselves are not in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from trainmaster.control.attempt.recorded_environment import environment_at
from trainmaster.dataclass import dataclass
from trainmaster.db import queries
from trainmaster.service.runs.lineage import lineage
from trainmaster.spec.errors import PublishError, UsageError

if TYPE_CHECKING:
    from trainmaster.service.service import Service
    from trainmaster.spec import Experiment, Recipe

FORMAT: Final = 1
_ABOUT, _RECIPE, _CODE = "capsule.json", "recipe.yaml", "code"
_MOST_BYTES: Final = 1 << 30
_MOST_ENTRIES: Final = 1_000_000
#: So many packages that differ are named.
_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class OpenedCapsule:
    """A capsule that was unpacked.

    Attributes:
        recipe: the file to run.
        notes: in what this machine differs from where it was made, and what has to be here.
    """

    recipe: Path
    notes: tuple[str, ...]


def write_capsule(service: Service, run: str, file: IO[bytes]) -> None:
    """Write the capsule of a run into a file that is open.

    Raises:
        NotFoundError: there is no such run.
        UsageError: its code is not here.
    """
    row = service.database.run_row(run)
    code = service.replicas.code(row)
    if not code.is_dir():
        raise UsageError(
            f"the code of {run} is not here any more: {code}", "Export runs before you clean up."
        )
    recipe = service.replicas.recipe(row)
    made = {name: lineage(service, run, name, 0) for name in recipe.experiments}
    about = {
        "format": FORMAT,
        "run": run,
        "name": recipe.name,
        "seed": recipe.seed,
        "code": code.name,
        "state": row["state"],
        "reason": row["reason"],
        "experiments": {
            name: {"setup": recipe.experiments[name].setup is not None}
            | {key: each[key] for key in ("data", "environment")}
            for name, each in made.items()
        },
        "models": list(_models(service, run)),
        "needs": list(_needs(recipe)),
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        _write(archive, _ABOUT, json.dumps(about, indent=2).encode())
        _write(archive, _RECIPE, _pinned(recipe, made, json.loads(row["labels"])).encode())
        _add_all(archive, code, run)


def _models(service: Service, run: str) -> Iterator[dict[str, Any]]:
    from trainmaster.artifacts import read_manifest

    for row in queries.models(service.database, run):
        try:
            manifest = read_manifest(row["uri"])
        except PublishError:
            manifest = None  # its store is away, or it was deleted
        yield {
            "model": f"{row['experiment']}/{row['task']}",
            "uri": row["uri"],
            "metrics": json.loads(row["metrics"]),
            "parameters": json.loads(row["parameters"]),
            "files": {each.path: each.sha256 for each in manifest.files if each.sha256} if manifest else {},
        }


def _needs(recipe: Recipe) -> Iterator[str]:
    for name, experiment in recipe.experiments.items():
        for key, source in experiment.data.items():
            if source.directory is not None:
                yield f"experiments.{name}.data.{key}.dir: {source.directory} is not in the capsule"
            if source.model is not None:
                yield f"experiments.{name}.data.{key}.model: {source.model} must be registered there"
        for key, reference in _earlier_runs(experiment).items():
            key = f"experiments.{name}.{key}.from"
            without = f"`--set {key}=null` runs it without"
            yield f"{key}: {reference} is of a run that is not in the capsule; {without}"
        if experiment.serve is not None and (model := experiment.serve.model):
            what = "is a model of a run" if "/" in model else "must be registered there"
            yield f"experiments.{name}.serve.model: {model} {what}"
    named = {secret for each in recipe.experiments.values() for secret in each.secrets}
    if secrets := sorted(named.union(() if recipe.sinks is None else recipe.sinks.secrets)):
        yield f"secrets: values of {', '.join(secrets)}"


def _earlier_runs(experiment: Experiment) -> dict[str, str]:
    """What of earlier runs it has begun with, by section."""
    begins_with = experiment.checkpoint and experiment.checkpoint.begins_with
    goes_on = experiment.search and experiment.search.goes_on
    found = {"checkpoint": begins_with, "search": goes_on}
    return {key: reference for key, reference in found.items() if reference}


def _pinned(recipe: Recipe, made: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """The recipe as YAML, with its labels and the versions of volumes, models and runs that it has used."""
    changes: dict[str, Any] = {} if labels == recipe.labels else {"labels": labels or None}
    for name, experiment in recipe.experiments.items():
        if recipe.code.endswith(".whl"):  # its files are unpacked, so nothing else says what is run
            changes |= {f"experiments.{name}.command": experiment.command}
            changes |= {"main": None} if "\nmain:" in f"\n{recipe.source_text}" else {}
        for key, reference in _earlier_runs(experiment).items():
            changes[f"experiments.{name}.{key}.from"] = reference
        for each in made[name]["data"]:
            key, kind = each["name"], each["kind"]
            if kind in ("volume", "model"):
                shared = recipe.data.get(key)
                is_shared = shared is not None and bool(getattr(shared, kind))
                where = f"data.{key}" if is_shared else f"experiments.{name}.data.{key}"
                changes[f"{where}.{kind}"] = each["source"]
    overrides = (*recipe.overrides, *(f"{key}={json.dumps(value)}" for key, value in changes.items()))
    return recipe.model_copy(update={"overrides": overrides}).as_yaml(code=_CODE)


def _add_all(archive: zipfile.ZipFile, code: Path, run: str) -> None:
    for path in sorted(code.rglob("*")):
        try:
            _add(archive, path, f"{_CODE}/{path.relative_to(code)}")
        except UnicodeEncodeError:
            raise UsageError(
                f"the code of {run} has a file whose name is no UTF-8: {os.fsencode(path.name)!r}",
                "A capsule has no place for such a name. Rename the file, and run the recipe again.",
            ) from None


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    if path.is_dir() and not path.is_symlink():
        if not any(path.iterdir()):
            _write(archive, f"{name}/", b"", stat.S_IFDIR | 0o755)
    elif path.is_symlink():
        _write(archive, name, os.fsencode(path.readlink()), stat.S_IFLNK | 0o777)
    elif path.is_file():
        _write(archive, name, path.read_bytes(), stat.S_IFREG | (path.stat().st_mode & 0o777))


def _write(archive: zipfile.ZipFile, name: str, data: bytes, mode: int = stat.S_IFREG | 0o644) -> None:
    """The same run is the same file, whenever it is exported."""
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is there when it is whole, and replaces none.

    Raises:
        UsageError: there is one already, or it cannot be written.
    """
    exists = UsageError(f"{path} is there already", "Give another name; nothing was changed.")
    if path.exists():
        raise exists
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=".capsule-") as draft:
            yield draft
            draft.flush()
            os.link(draft.name, path)
    except FileExistsError:
        raise exists from None
    except OSError as error:
        hint = "Name another place." if path.absolute().parent.is_dir() else "Make its directory first."
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint) from error


def needs_of(path: Path) -> list[str]:
    """What is not in a capsule, and has to be where it is to run."""
    with zipfile.ZipFile(path) as archive:
        return list(json.loads(archive.read(_ABOUT))["needs"])


def open_capsule(path: Path, cache: Path) -> OpenedCapsule:
    """Unpack a capsule, once.

    Args:
        path: of the file.
        cache: below it is where capsules lie, by the hash of the file.

    Raises:
        UsageError: it is damaged, holds what no archive should, or a later Trainmaster has written it.
    """
    from trainmaster.artifacts.scratch import made_whole
    from trainmaster.artifacts.unpacking import UnpackError, UnpackLimits, unpack

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = cache / "capsules" / digest[:20]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as file, made_whole(target) as scratch:
            try:
                unpack(file, f"{path.name}.zip", scratch, UnpackLimits(_MOST_BYTES, _MOST_ENTRIES))
            except UnpackError as error:
                raise UsageError(
                    f"{path} is no whole capsule: {error.__cause__ or error}",
                    "Copy it once more, or export the run again.",
                ) from error
    if not (target / _ABOUT).is_file():
        raise UsageError(f"{path} is no capsule: a zip without {_ABOUT}", "`trainmaster export` makes them.")
    try:
        about = json.loads((target / _ABOUT).read_text())
        if (kind := about["format"]) != FORMAT:  # what else is in it may mean something else
            raise UsageError(f"{path}: format {kind}, which this Trainmaster cannot read", "Use a later one.")
        notes = [f"needs {each}" for each in about["needs"]]
        for experiment in about["experiments"].values():
            before, here = experiment["environment"], environment_at()
            if before is not None and experiment["setup"]:  # which makes the packages, here as there
                before = {**before, "packages": {}}
            notes += differences(before, here)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: {_ABOUT} in it is damaged: {error}", "Export the run once more."
        ) from error
    return OpenedCapsule(target / _RECIPE, tuple(dict.fromkeys(notes)))


def differences(before: Mapping[str, Any] | None, here: Mapping[str, Any]) -> list[str]:
    """In what an environment differs from the one that a run had.

    >>> old = {"python": "3.11.1", "platform": "Linux x86_64", "packages": {"numpy": "2.0", "six": "1.0"}}
    >>> differences(old, {**old, "python": "3.12.0", "packages": {"numpy": "2.1", "rich": "9"}})
    ['python is 3.12.0 here, it was 3.11.1', 'packages differ: numpy 2.1 (was 2.0), six missing (was 1.0)']
    """
    if before is None:
        return ["its environment was not recorded"]
    if "image" in before:  # the recipe names it, and nothing of here counts
        return [f"it ran in the container {before['image']}, {before['digest']}"]
    keys = ("python", "platform")
    found = [f"{key} is {here[key]} here, it was {before[key]}" for key in keys if here[key] != before[key]]
    packages = [
        f"{name} {here['packages'].get(name, 'missing')} (was {version})"
        for name, version in before["packages"].items()
        if here["packages"].get(name) != version
    ]
    if packages:
        more = f" and {len(packages) - _NAMED} more" if len(packages) > _NAMED else ""
        found.append(f"packages differ: {', '.join(packages[:_NAMED])}{more}")
    return found
