"""`foreign_file`: whether a text is a file of another tool, and what its keys are called in a recipe."""

from __future__ import annotations

import re
from typing import Final

_TOP_KEY: Final = re.compile(r"^([A-Za-z_][\w-]*)[ \t]*:[ \t]*([^\s#]*)", re.MULTILINE)
_SBATCH: Final = re.compile(r"^#SBATCH[ \t]", re.MULTILINE)
_RADL: Final = re.compile(r"^[ \t]*deploy[ \t]+[\w.-]+[ \t]+\d+", re.MULTILINE)
_SKYPILOT: Final = {
    "run": "`command`",
    "resources": "`provider` and `hardware`",
    "num_nodes": "`distributed: {workers: N}`",
    "workdir": "`code`",
    "envs": "`env`",
    "file_mounts": "`data`",
    "setup": "`setup`",
}
_DSTACK: Final = {
    "commands": "`command`",
    "resources": "`hardware`",
    "nodes": "`distributed: {workers: N}`",
    "image": "`container`",
    "files": "`code`",
    "env": "`env` and `secrets`",
    "port": "`serve`",
}
#: Configurations of dstack of which no recipe can be made, and what does the same here.
NO_JOBS: Final = {
    "dev-environment": "`trainmaster notebook --provider P` rents a machine and opens JupyterLab there",
    "fleet": "machines are rented for runs; `trainmaster run --keep 30m` keeps them",
    "volume": "`trainmaster volume push` makes volumes",
    "gateway": "services are behind `trainmaster server`",
}
#: A task of SkyPilot of which no recipe can be made, and what comes closest.
WIDE_SERVICE: Final = "a service of SkyPilot whose replicas have several nodes, which no recipe can say"
WIDE_SERVICE_HINT: Final = (
    "A replica is one machine here: `hardware: {gpus: 8}` takes a larger one, "
    "`serve: {replicas: N}` more of them."
)
#: Machines of SkyPilot that wait for jobs: a file with `pool` has no command.
POOL: Final = "a pool of SkyPilot, which is no job"
POOL_HINT: Final = "Convert the file of its jobs: tasks share machines, and `run --keep 30m` keeps them."
_DSTACK_TYPES: Final = ("task", "service", *NO_JOBS)
_COMPOSE: Final = {"services": "`experiments`, with `image` as `container` and `environment` as `env`"}
_SBATCH_KEYS: Final = "its options are keys such as `hardware` and `distributed`, its script is the `command`"


def foreign_kind(text: str) -> str:
    r"""Of which tool a text is a file; empty if of none that is known.

    >>> foreign_kind("num_nodes: 2\nrun: make\n"), foreign_kind("experiments:\n  a: {command: make}\n")
    ('SkyPilot', '')
    """
    keys = dict(_TOP_KEY.findall(text))
    if "experiments" in keys:
        return ""
    if _SBATCH.search(text):
        return "sbatch"
    if _RADL.search(text) and not keys:
        return "RADL"
    if "tosca_definitions_version" in keys:
        return "TOSCA"
    if _plain(keys.get("type", "")) in _DSTACK_TYPES:
        return "dstack"
    if "run" in keys or (len(keys.keys() & _SKYPILOT.keys()) > 1 and "resources" in keys):
        return "SkyPilot"
    return "docker-compose" if "services" in keys else ""


def foreign_file(text: str) -> str:
    r"""What to say of a file of another tool that is given as a recipe; empty if it is none that is known.

    >>> foreign_file("name: a\nexperiments:\n  main: {command: make}\n")
    ''
    >>> foreign_file("num_nodes: 2\nrun: make\n").partition(":")[0]
    'a task of SkyPilot, not a recipe'
    """
    keys = dict(_TOP_KEY.findall(text))
    match kind := foreign_kind(text):
        case "sbatch":
            return _said("a script of sbatch", kind, _SBATCH_KEYS)
        case "TOSCA" | "RADL":
            return f"a document in {kind}, not a recipe: `trainmaster convert FILE` makes one of it"
        case "dstack" if (found := _plain(keys["type"])) in NO_JOBS:
            return f"a {found} of dstack, which is no job: {NO_JOBS[found]}"
        case "dstack":
            return _said("a configuration of dstack", kind, _meant(keys, _DSTACK))
        case "SkyPilot" if "pool" in keys and "run" not in keys:
            return f"{POOL}: {POOL_HINT}"
        case "SkyPilot" if "service" in keys and _plain(keys.get("num_nodes", "")) not in ("", "0", "1"):
            return f"{WIDE_SERVICE}. {WIDE_SERVICE_HINT}"
        case "SkyPilot":
            return _said("a task of SkyPilot", kind, _meant(keys, _SKYPILOT))
        case "docker-compose":
            return _said("a file of docker-compose", kind, _meant(keys, _COMPOSE))
        case _:
            return ""


def _plain(value: str) -> str:
    return value.strip("'\"")


def _meant(keys: dict[str, str], names: dict[str, str]) -> str:
    return ", ".join(f"`{key}` is {ours}" for key, ours in names.items() if key in keys)


def _said(what: str, tool: str, meant: str) -> str:
    made = "`trainmaster convert FILE` makes one of it"
    keys = f'docs/migrate.md, "From {tool}", has each key'
    return f"{what}, not a recipe: {made}; {meant}{'; ' * bool(meant)}{keys}"
