"""`convert`: a document of another tool, as a recipe with a comment for every line that was dropped."""

from __future__ import annotations

import json
import re
from pathlib import PurePath

from trainmaster.service.conversion.description import ClusterDescription, MachineGroup
from trainmaster.service.conversion.radl import read_radl
from trainmaster.service.conversion.tosca import read_tosca
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.roles import secret_of

_KINDS = {".radl": read_radl, ".yaml": read_tosca, ".yml": read_tosca}


def convert(source: str, file: str) -> str:
    """The text of a recipe.

    Args:
        source: what stands in the document.
        file: its name, which says what it is: ``.radl``, or ``.yaml`` and ``.yml`` for TOSCA.

    Raises:
        UsageError: it is of another kind, or not right.
    """
    read = _KINDS.get(PurePath(file).suffix.lower())
    if read is None:
        raise UsageError(
            f"{file}: only .radl, and .yaml or .yml with TOSCA, can be converted",
            "docs/migrate.md shows how other descriptions become recipes.",
        )
    found = _written(read(source, file), file)
    Recipe.from_text(found)  # whatever was read, this is one
    return found


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
            f"#   - {{name: {json.dumps(name)}, src: {json.dumps(_printable(source))}}}"
            for name, source in description.sources.items()
        ]
    if description.settings:
        values = {key: _printable(value) for key, value in description.settings.items()}
        lines += [
            "",
            "# What machines boot, and their networks, are settings of the provider. In im.yaml:",
            f"#   clouds: {json.dumps({_printable(description.cloud): values}, ensure_ascii=False)}",
        ]
    if description.dropped:
        lines += ["", "# Dropped, each with its line and the reason:"]
        lines += [
            f"# {line}: {_printable(text)}  -> {reason}"
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


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)
