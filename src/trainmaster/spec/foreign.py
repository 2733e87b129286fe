"""`foreign_file`: whether a text is a file of another tool, and what its keys are called in a recipe."""

from __future__ import annotations

import re
from typing import Final

_TOP_KEY: Final = re.compile(r"^([A-Za-z_][\w-]*)[ \t]*:[ \t]*([^\s#]*)", re.MULTILINE)
_SBATCH: Final = re.compile(r"^#SBATCH[ \t]", re.MULTILINE)
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
_DSTACK_TYPES: Final = ("task", "service", "dev-environment", "fleet", "volume", "gateway")
_COMPOSE: Final = {"services": "`experiments`, with `image` as `container` and `environment` as `env`"}
_SBATCH_KEYS: Final = "its options are keys such as `hardware` and `distributed`, its script is the `command`"


def foreign_file(text: str) -> str:
    r"""What to say of a file of another tool; empty if it is none that is known.

    >>> foreign_file("name: a\nexperiments:\n  main: {command: make}\n")
    ''
    >>> foreign_file("num_nodes: 2\nrun: make\n").partition(":")[0]
    'a task of SkyPilot, not a recipe'
    """
    keys = dict(_TOP_KEY.findall(text))
    if "experiments" in keys:
        return ""
    if _SBATCH.search(text):
        return _said("a script of sbatch", "sbatch", _SBATCH_KEYS)
    if "tosca_definitions_version" in keys:
        return "a document in TOSCA, not a recipe: `trainmaster convert FILE` makes one of it"
    if keys.get("type", "").strip("'\"") in _DSTACK_TYPES:
        return _said("a configuration of dstack", "dstack", _meant(keys, _DSTACK))
    if len(keys.keys() & _SKYPILOT.keys()) > 1 and ("run" in keys or "resources" in keys):
        return _said("a task of SkyPilot", "SkyPilot", _meant(keys, _SKYPILOT))
    if "services" in keys:
        return _said("a file of docker-compose", "docker-compose", _meant(keys, _COMPOSE))
    return ""


def _meant(keys: dict[str, str], names: dict[str, str]) -> str:
    return ", ".join(f"`{key}` is {ours}" for key, ours in names.items() if key in keys)


def _said(what: str, tool: str, meant: str) -> str:
    return f'{what}, not a recipe: {meant}{"; " * bool(meant)}docs/migrate.md, "From {tool}", has each key'
