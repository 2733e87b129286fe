"""Hashes of the environments that ``setup`` and ``container`` put on a machine; images are found by them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trainmaster.spec import Experiment

# What may be a path in a setup script: `./package[extra]`, `$(cat tool.txt)`, `--file=conda.yaml;`
_SHELL_WORD = re.compile(r"""[^\s'"`$(){}\[\]<>|&;=,]+""")
_CHARACTERS: Final = 20


def setup_hash(setup: str, python: str, code: Path) -> str:
    """The hash of the environment of a ``setup``: of script, Python, and every file that it mentions.

    Args:
        setup: the script.
        python: what it runs with.
        code: the user's files.
    """
    digest = hashlib.sha256(f"{python}\0{setup}".encode())
    for word in sorted(set(_SHELL_WORD.findall(setup))):
        path = code / word
        if os.path.isfile(path):  # noqa: PTH113 - it takes any text, `Path` raises on a long word
            digest.update(f"\0{word}\0".encode() + path.read_bytes())
        elif os.path.isdir(path) and path.resolve().is_relative_to(code.resolve()):  # noqa: PTH112
            for file in sorted(p for p in path.rglob("*") if p.is_file()):
                digest.update(f"\0{file.relative_to(code)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:_CHARACTERS]


def node_python(experiment: Experiment) -> str:
    """Stands for the Python of an experiment's nodes in a hash: each node checks that it fits its own."""
    return f"nodes {experiment.container or ''}".strip()


def environment_hashes(experiments: Iterable[Experiment], code: Path, team: str = "") -> tuple[str, ...]:
    """The hashes of what experiments need on their nodes beside our own; empty if that is nothing.

    Args:
        experiments: of the nodes.
        code: the user's files.
        team: whose they are: what one team's secrets have fetched is not another's.
    """
    found = set()
    for each in experiments:
        parts = [] if each.setup is None else [setup_hash(each.setup, node_python(each), code)]
        parts += [] if each.container is None else [each.container]
        found |= {part_hash(part, team) for part in parts}
    return tuple(sorted(found))


def part_hash(part: str, team: str = "") -> str:
    """What a part is known by: the hash of a ``setup``, or the name of a container's image.

    >>> part_hash("pytorch/pytorch:2.8.0") != part_hash("pytorch/pytorch:2.8.0", "biology")
    True
    """
    return hashlib.sha256(f"{team}\0{part}".encode()).hexdigest()[:_CHARACTERS]
