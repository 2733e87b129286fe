"""`convert`: a document of another tool, as a recipe with a comment for every line that was dropped."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path, PurePath
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.service.conversion.compose import read_compose
from trainmaster.service.conversion.description import ClusterDescription, MachineGroup
from trainmaster.service.conversion.draft import Draft, ExperimentDraft, printable
from trainmaster.service.conversion.dstack import read_dstack
from trainmaster.service.conversion.job import Beside, ForeignJob
from trainmaster.service.conversion.radl import read_radl
from trainmaster.service.conversion.sbatch import read_sbatch
from trainmaster.service.conversion.skypilot import read_skypilot
from trainmaster.service.conversion.tosca import read_tosca
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError, fails_as
from trainmaster.spec.foreign import foreign_kind
from trainmaster.spec.node import MAX_RECIPE_BYTES
from trainmaster.spec.roles import secret_of

#: What a command line begins with that is converted without a file.
_LAUNCHERS: Final = re.compile(
    r"\s*(?:(?:\w+=\S*|nohup|setsid(?:\s+-\w+)*|time|exec)\s+)*(?:\S*/)?(?:torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|python[\d.]*\s+-m\s+torch\.dist)\S*\s"
)
_TUNE: Final = re.compile(r"^\s*(?:from ray import .*\btune\b|(?:import|from) ray\.tune\b)", re.MULTILINE)
_READERS: Final = {
    "sbatch": read_sbatch,
    "SkyPilot": read_skypilot,
    "dstack": read_dstack,
    "docker-compose": read_compose,
}
_SUFFIXES: Final = [".yaml", ".yml", ".dstack", ".sky", ".slurm", ".sbatch", ".sh", ".bash"]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was made of a file.

    Attributes:
        tool: whose file it is.
        recipe: the text of the recipe, with all of the following as comments.
        decisions: with lines of the file: what stands there, and what is to be decided.
        dropped: with lines of the file: what stands there, and why no key says it.
    """

    tool: str
    recipe: str
    decisions: tuple[tuple[int, str, str], ...]
    dropped: tuple[tuple[int, str, str], ...]


def convert(source: str, file: str) -> str:
    """The text of a recipe; see `conversion_of`."""
    return conversion_of(source, file).recipe


def conversion_of(source: str, file: str, beside: Beside = lambda path: "") -> Conversion:
    """A recipe of a file of another tool.

    Args:
        source: what stands in the file, or a command line.
        file: its name.
        beside: the text of a file that its commands name; empty if there is none.

    Raises:
        UsageError: it is of no kind that is known, or no recipe can say it.
    """
    found = _converted(source, file, beside)
    try:
        Recipe.from_text(found.recipe)  # whatever was read, this is one
    except RecipeError as error:
        raise UsageError(
            f"{file}: no recipe says this: {error.mistakes[0].message}",
            "Write the recipe by hand: docs/migrate.md has the keys.",
        ) from error
    return found


def conversion_of_file(document: str) -> Conversion:
    """A recipe of a file, and of those beside it that its commands name; or of a command line.

    Args:
        document: a path, or a line such as of torchrun.

    Raises:
        UsageError: it cannot be read, is of no kind that is known, or no recipe can say it.
    """
    if is_command_line(document):
        return conversion_of(document, "command line", lambda path: _beside(Path(), path))
    file = Path(document)
    # Where it lies says what it is called, if it is a `.dstack.yml`.
    shown = str(file.absolute()) if file.name.startswith(".") else document
    return conversion_of(_read(file), shown, lambda path: _beside(file.parent, path))


def _beside(directory: Path, path: str) -> str:
    """The text of a file that a command names; empty if there is none."""
    try:
        with (directory / path).open("rb") as file:
            return file.read(MAX_RECIPE_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _read(path: Path) -> str:
    """The text of a document.

    Raises:
        UsageError: it cannot be read.
    """
    hint = "Give the path of the document."
    if " " in str(path):
        hint = "If it is a command: `trainmaster init` makes a recipe of the script that it starts."
    with fails_as(str(path), hint):
        content = path.read_bytes()
        if len(content) > MAX_RECIPE_BYTES:
            raise UsageError(
                f"{path}: {len(content):,} bytes; such documents are smaller", "Is it the right file?"
            )
        return content.decode("utf-8-sig")


def _converted(source: str, file: str, beside: Beside) -> Conversion:
    kind = foreign_kind(source)
    name = _name_of(file)
    if PurePath(file).suffix.lower() == ".radl" or kind == "RADL":
        return _of_cluster(read_radl(source, file), file)
    if kind == "TOSCA":
        return _of_cluster(read_tosca(source, file), file)
    if kind in _READERS:
        draft = _READERS[kind](source, file, name, beside)
    elif any(map(is_command_line, source.split("\n"))):
        draft = Draft("a command line", name, experiments=[ExperimentDraft("main")])
        ForeignJob("", re.sub(r"\A#!.*", "", source)).fill(draft, draft.experiments[0], beside)
    else:
        raise UsageError(
            f"{file}: no file of sbatch, SkyPilot, dstack, docker-compose, RADL or TOSCA, and no line of "
            "torchrun, accelerate, deepspeed or mpirun",
            _hint(source, file),
        )
    return Conversion(draft.tool, draft.text(file), tuple(draft.decisions), tuple(draft.dropped))


def _hint(source: str, file: str) -> str:
    """What makes a recipe of a file that no other tool reads."""
    if PurePath(file).name.lower() in ("makefile", "gnumakefile") or PurePath(file).suffix == ".mk":
        return "`make TARGET` is a `command` of a recipe; see docs/migrate.md."
    if PurePath(file).suffix == ".py" and _TUNE.search(source):
        return "docs/migrate.md says what stands for `tune.Tuner`; with `framework: ray` it runs unchanged."
    if PurePath(file).suffix in (".py", ".sh", ".bash", ".R", ".jl", ".ipynb"):
        return f"`trainmaster init {shlex.quote(file)}` writes a recipe for a script."
    return "docs/migrate.md shows how other descriptions become recipes."


def _of_cluster(description: ClusterDescription, file: str) -> Conversion:
    return Conversion(description.kind, _written(description, file), (), tuple(description.dropped))


def is_command_line(text: str) -> bool:
    """Whether it is what a shell is given, and no path."""
    return _LAUNCHERS.match(text) is not None


def _name_of(file: str) -> str:
    """What a recipe is called that is made of a file; of ``.dstack.yml`` its directory."""
    path = PurePath(file)
    stem = path.name
    while (cut := PurePath(stem).suffix.lower()) in _SUFFIXES:
        stem = stem[: -len(cut)]
    if stem.lower() in (".dstack", "sky", "task", "job", "docker-compose", "compose", ""):
        stem = path.parent.name or stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "converted"


def _written(description: ClusterDescription, file: str) -> str:
    servers = [machine for machine in description.machines if machine.is_server]
    workers = [machine for machine in description.machines if not machine.is_server]
    if not workers:  # nothing else is there that could train
        servers, workers = [], servers
    for machines in (servers, workers):
        _keep_one(machines, description)
    count = sum(machine.count for machine in workers)
    serving = sum(machine.count for machine in servers)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(file).stem).strip("-._") or "converted"
    lines = [
        f"# From {json.dumps(PurePath(file).name)} ({description.kind}). What no key says is at the end.",
        f"name: {json.dumps(name)}",
        "provider: im  # or any other: `trainmaster offers` shows what they have",
        "experiments:",
        "  train:",
    ]
    if serving:
        hardware = f", hardware: {{ps: {_flow(servers[0])}}}" if servers[0].hardware else ""
        has_master = any(machine.name.lower().startswith("master") for machine in workers)
        chief = ", chief: worker" if has_master else ""
        said = "" if has_master else "  # has a chief besides, which coordinates"
        lines += [
            f"    framework: tensorflow{said}",
            "    distributed: {strategy: ps-async, "
            f"workers: {count}, parameter_servers: {serving}{chief}{hardware}}}",
        ]
    elif count > 1:
        lines.append(f"    distributed: {{strategy: allreduce, workers: {count}, per_node: 1}}")
    if workers[0].hardware:
        lines.append(f"    hardware: {_flow(workers[0])}")
    secrets = sorted(
        {name for use in description.roles for name in map(secret_of, use.variables.values()) if name}
    )
    if secrets:
        lines.append(f"    secrets: [{', '.join(secrets)}]  # by name: their values are not copied")
    if description.roles:
        lines.append("    roles:  # of Ansible, each a directory in the code")
    for use in description.roles:
        on = "" if use.on == "all" or (use.on == "ps" and not serving) else f", on: {use.on}"
        given = f", vars: {json.dumps(use.variables)}" if use.variables else ""
        lines.append(f"      - {{role: roles/{use.name}{on}{given}}}")
    lines.append("    command: python train.py  # write what each member runs")
    if description.sources:
        lines += [
            "",
            "# Roles that lie elsewhere; `ansible-galaxy role install -p roles -r FILE` brings them:",
        ]
        lines += [
            f"#   - {{name: {json.dumps(name)}, src: {json.dumps(printable(source))}}}"
            for name, source in description.sources.items()
        ]
    if description.settings:
        values = {key: printable(value) for key, value in description.settings.items()}
        lines += [
            "",
            "# What machines boot, and their networks, are settings of the provider. In im.yaml:",
            f"#   clouds: {json.dumps({printable(description.cloud): values}, ensure_ascii=False)}",
        ]
    if description.dropped:
        lines += ["", "# Dropped, each with its line and the reason:"]
        lines += [
            f"# {line}: {printable(text)}  -> {reason}"
            for line, text, reason in sorted(set(description.dropped))
        ]
    return "\n".join(lines) + "\n"


def _keep_one(machines: list[MachineGroup], description: ClusterDescription) -> None:
    """Members of a role are alike: of several types the first one's hardware counts."""
    for other in machines[1:]:
        for key, (line, text) in other.lines.items():
            if machines[0].hardware.get(key) != other.hardware[key]:
                description.drop(
                    line, text, f"members of a role are alike: those of {machines[0].name} count"
                )


def _flow(machine: MachineGroup) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in machine.hardware.items()) + "}"
