"""`read_tosca`: TOSCA's simple profile in YAML, as far as it says what machines are wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from trainmaster.service.conversion.description import ClusterDescription, MachineGroup, RoleUse, size_of
from trainmaster.service.conversion.secrets import without_secrets
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import Kind, Wording, YamlNode, compose

TOSCA: Final = Wording("a TOSCA document", "documents", "a mapping with the key `topology_template`")
_COMPUTE: Final = re.compile(r"tosca\.nodes\.(?:\w+\.)*Compute$")
_COUNTS: Final = ("count", "default_instances")
#: Sections of a template of machines that hold only sections.
_OPEN: Final = ("capabilities", "host", "scalable", "os", "properties", "type")
_SOFTWARE: Final = (
    "software is installed by roles of Ansible: put its tasks into one, and name it under `roles`"
)
_REASONS: Final = {
    "os": "the image of machines is a setting of the provider",
    "interfaces": _SOFTWARE,
    "artifacts": _SOFTWARE,
    "requirements": "machines have one disk, and members of a gang reach each other",
    "endpoint": "nothing is open to the world but SSH; `trainmaster open` and `port-forward` lead to ports",
}


def read_tosca(source: str, file: str) -> ClusterDescription:
    """Read a document in TOSCA.

    Raises:
        UsageError: it is none, with the place in it.
    """
    root = compose(source, file, TOSCA)
    topology = _below(root, "topology_template")
    templates = _below(topology, "node_templates")
    if templates is None or "tosca_definitions_version" not in root.entries:
        raise UsageError(
            f"{file}: no tosca_definitions_version and topology_template.node_templates",
            "Of YAML only TOSCA's simple profile can be converted.",
        )
    return _ToscaReader(source, file, root, templates).read()


class _ToscaReader:
    def __init__(self, source: str, file: str, root: YamlNode, templates: YamlNode) -> None:
        self._lines = without_secrets(source).splitlines()
        self._file = file
        self._root = root
        self._templates = templates
        self._inputs = _below(_below(root, "topology_template"), "inputs")
        self._found = ClusterDescription("TOSCA")
        #: Lines that a key of the recipe says, or that only hold others.
        self._told: set[int] = set()
        self._reasons: dict[int, str] = {}
        #: Keys that no recipe says, with their reasons; they may share a line with one that is told.
        self._untold: list[tuple[int, str, str]] = []

    def read(self) -> ClusterDescription:
        self._tell(self._root, "tosca_definitions_version")
        self._tell(self._root, "topology_template")
        self._tell(_below(self._root, "topology_template"), "node_templates")
        for name, template in self._templates.entries.items():
            kind = _below(template, "type")
            if kind is not None and _COMPUTE.fullmatch(kind.text):
                self._tell(self._templates, name)
                self._machines(name, template)
            else:
                self._reason(self._templates.keys[name], _SOFTWARE)
        for name, template in self._templates.entries.items():
            self._roles(name, template)
        if not self._found.machines:
            raise UsageError(
                f"{self._file}: it has no node of type tosca.nodes.Compute", "Nothing would be rented."
            )
        for number, name, reason in self._untold:
            if number in self._told:
                self._found.drop(number, name, reason)
        for number, line in enumerate(self._lines, 1):
            text = line.strip()
            if text and not text.startswith("#") and text not in ("---", "...") and number not in self._told:
                self._found.drop(number, text, self._reasons.get(number, "no key of a recipe says it"))
        return self._found

    def _machines(self, name: str, template: YamlNode) -> None:
        machine = MachineGroup(name, template.line, 1)
        capabilities = _below(template, "capabilities")
        for parent in (template, capabilities):
            if parent is not None and parent.kind is Kind.MAPPING:
                for key in parent.entries:
                    if key in _OPEN and key != "os":
                        self._tell(parent, key)
                    else:
                        reason = _REASONS.get(key, "no key of a recipe says it")
                        self._reason(parent.keys[key], reason)
                        self._untold.append((parent.keys[key].line, key, reason))
        for section in ("host", "scalable"):
            holder = _below(capabilities, section)
            properties = _below(holder, "properties")
            if properties is None or properties.kind is not Kind.MAPPING:
                continue
            self._tell(holder, "properties")
            for key, node in properties.entries.items():
                value = self._value(node)
                line = properties.keys[key].line
                if value is None:
                    self._reasons[line] = "its value comes from somewhere else"
                    self._untold.append((line, key, self._reasons[line]))
                elif section == "scalable" and key in _COUNTS and value.isdigit():
                    machine.count = int(value)
                    self._told.add(line)
                elif section == "host" and (written := _written(key, value)):
                    machine.want(*written, line, f"{key}: {value}")
                    self._told.add(line)
                else:
                    self._untold.append(
                        (line, without_secrets(f"{key}: {value}"), "no key of a recipe says it")
                    )
        if machine.count:
            self._found.machines.append(machine)

    def _roles(self, name: str, template: YamlNode) -> None:
        """Roles of Ansible Galaxy that a template names, on the machines that host it, with its inputs."""
        artifacts = _below(template, "artifacts")
        if artifacts is None:
            return
        children = artifacts.items if artifacts.kind is Kind.LIST else [artifacts]
        hosts = [name, *(each.text for each in _leaves(_below(template, "requirements")))]
        machine = next((each for each in self._found.machines if each.name in hosts), None)
        on = "all" if machine is None else "ps" if machine.is_server else "worker"
        given = list(_mappings(_below(template, "interfaces"), "inputs"))
        for artifact in (each for child in children for each in child.entries.values()):
            kind, file = _below(artifact, "type"), _below(artifact, "file")
            if kind is None or file is None or not kind.text.endswith("AnsibleGalaxy.role"):
                continue
            source = file.text.strip()
            role = re.sub(r"[^\w.-]", "-", source.partition(",")[0].rpartition("/")[2].removesuffix(".git"))
            values = {key: self._value(node) for each in given for key, node in each.entries.items()}
            variables = {key: self._safe(key, value) for key, value in values.items() if value is not None}
            if self._found.use(RoleUse(role, on, variables)):
                self._found.sources[role] = source
                self._told |= set(range(artifact.line, file.line + 1)) | {kind.line}

    @staticmethod
    def _safe(key: str, value: str) -> object:
        """A value, or the name of a secret in its place."""
        line = f"{key}: {value}"
        is_secret = value and without_secrets(line) != line
        return {"secret": re.sub(r"\W", "_", key).upper()} if is_secret else value

    def _value(self, node: YamlNode) -> str | None:
        """A value, or the default of the input that it names."""
        if node.kind is Kind.SCALAR:
            return node.text.strip()
        name = _below(node, "get_input")
        if name is None or name.kind is not Kind.SCALAR:
            return None
        given = _below(_below(self._inputs, name.text), "default")
        return given.text.strip() if given is not None and given.kind is Kind.SCALAR else None

    def _tell(self, parent: YamlNode | None, key: str) -> None:
        if parent is not None and key in parent.keys:
            self._told.add(parent.keys[key].line)

    def _reason(self, key: YamlNode, reason: str) -> None:
        """Why nothing from a key on to the end of its value is told."""
        indent = key.column
        for number in range(key.line, len(self._lines) + 1):
            text = self._lines[number - 1]
            if number > key.line and text.strip() and len(text) - len(text.lstrip()) < indent:
                break
            self._reasons.setdefault(number, reason)


def _below(node: YamlNode | None, key: str) -> YamlNode | None:
    return node.entries.get(key) if node is not None and node.kind is Kind.MAPPING else None


def _leaves(node: YamlNode | None) -> Iterator[YamlNode]:
    if node is not None and node.kind is Kind.SCALAR:
        yield node
    elif node is not None:
        for child in (*node.items, *node.entries.values()):
            yield from _leaves(child)


def _mappings(node: YamlNode | None, key: str) -> Iterator[YamlNode]:
    """All mappings of that name, however deep."""
    for name, child in node.entries.items() if node is not None else ():
        if name == key and child.kind is Kind.MAPPING:
            yield child
        else:
            yield from _mappings(child, key)


def _written(key: str, value: str) -> tuple[str, str] | None:
    """A property of machines as a key of ``hardware``."""
    if key in ("num_cpus", "num_gpus") and value.isdigit() and int(value):
        return ("cpus" if key == "num_cpus" else "gpus"), str(int(value))
    if key in ("mem_size", "disk_size") and (size := size_of(value)):
        return ("memory" if key == "mem_size" else "disk"), size
    if key == "instance_type" and value and not set(value) & set("*?"):
        return "instance", json.dumps(value)
    if key == "gpu_model" and value and not value.isdigit():
        return "gpu", json.dumps(value.lower())
    if key == "preemtible_instance" and value.lower() in ("true", "false", "yes", "no"):
        return "spot", "true" if value.lower() in ("true", "yes") else "false"
    return None
