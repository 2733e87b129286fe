"""`read_compose`: a docker-compose file: jobs that end, and services that answer. Pure."""

from __future__ import annotations

import math
import re
import shlex
from typing import Final

from trainmaster.service.conversion.draft import Draft, ExperimentDraft
from trainmaster.service.conversion.job import Beside, ForeignJob
from trainmaster.service.conversion.yaml_values import (
    Section,
    memory,
    put_data,
    put_port,
    put_probe,
    put_variables,
    seconds,
)
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import Kind, Wording, YamlNode, compose

COMPOSE: Final = Wording("a docker-compose file", "files", "a mapping with `services`")
_DEFAULT: Final = re.compile(r"\$\{(\w+):?-([^{}]*)\}")
_URL: Final = re.compile(r"https?://[^/\s]+(/\S*)?")
_POSTS: Final = re.compile(r"-X\s*POST|--request[ =]POST")
_BODY: Final = re.compile(r"(?:-d|--data(?:-raw)?)[ =](?:'([^']*)'|\"([^\"]*)\"|(\S+))")
_REASONS: Final = {
    "restart": "lost machines are replaced, and a run goes on", "container_name": "members have names",
    "ipc": "containers have the machine's",
    "networks": "members of a gang find each other", "expose": "`trainmaster port-forward` leads to ports",
    "ports": "`trainmaster port-forward` leads to ports", "runtime": "GPUs are `hardware: {gpus: N}`",
    "tty": "", "stdin_open": "", "logging": "`trainmaster logs RUN`", "version": "",
    "volumes": "`data` has them",
    "user": "a container has your user", "privileged": "containers have no more rights",
    "image": "an experiment has one image",
}  # fmt: skip
_DECISIONS: Final = {
    "build": "build the image, push it, and write its name as `container`",
    "env_file": "`env_file: FILE` of the recipe",
    "healthcheck": "`serve: {health: PATH}`",
    "extends": "`include: FILE` of the recipe",
}


def read_compose(source: str, file: str, name: str, beside: Beside) -> Draft:
    """A draft of the recipe that a file is; as `read_dstack`.

    Raises:
        RecipeError: it is no YAML, with the place in it.
        UsageError: it has no services.
    """
    root = Section(compose(source, file, COMPOSE), source.split("\n"))
    services = root.node("services")
    if services is None or services.kind is not Kind.MAPPING or not services.entries:
        raise UsageError(
            f"{file}: it has no services", "A docker-compose file names what runs under `services`."
        )
    draft = Draft("docker-compose", root.text("name") or name)
    for key, node in services.entries.items():
        _service(draft, key, Section(node, root.lines), beside)
    serving = {each.name for each in draft.experiments if "serve" in each.keys}
    for each in draft.experiments:
        after = [other for other in each.keys.get("after", ()) if other not in serving]  # type: ignore[attr-defined]
        if len(after) < len(each.keys.pop("after", ())):  # type: ignore[arg-type]
            draft.decide(
                1, each.name, "it comes after what does not end: services do not find each other by name"
            )
        if after:
            each.keys["after"] = after
    root.rest(draft, _REASONS, _DECISIONS)
    return draft


def _service(draft: Draft, key: str, section: Section, beside: Beside) -> None:
    experiment = ExperimentDraft(re.sub(r"[^A-Za-z0-9._-]", "-", key).strip("-._") or "main")
    draft.experiments.append(experiment)
    if image := _filled(section.text("image")):
        experiment.keys["container"] = image
    put_variables(draft, experiment.keys, [_of_shell(each) for each in section.pairs("environment")])
    if depends := section.texts("depends_on"):
        experiment.keys["after"] = depends
    node = section.node("entrypoint")
    command = " ".join(part for part in (_command(node), _command(section.node("command"))) if part)
    job = ForeignJob("", command or "true", section.first_line_of("command"), begins="set +u")
    if not command:
        draft.decide(section.line("image"), key, "the image's own command is not known: write `command`")
    if where := section.text("working_dir"):
        job.command = f"cd {shlex.quote(where)}\n{job.command}"
    for text, line in _items(section.node("volumes")):
        _mount(draft, experiment, job, text, line)
    deploy = section.section("deploy")
    job.gpus = _hardware(experiment, section, deploy)
    ports = [text for text, _ in _items(section.node("ports"))]
    if ports:
        serve: dict[str, object] = {}
        _probe(section.section("healthcheck"), serve)
        port = ports[0].rpartition(":")[2].partition("/")[0]
        put_port(draft, serve, job, port, deploy.number("replicas") or 1, section.line("ports"))
        experiment.keys["serve"] = serve
    job.fill(draft, experiment, beside)
    deploy.rest(draft, _REASONS)
    section.rest(draft, _REASONS, _DECISIONS)


def _probe(check: Section, serve: dict[str, object]) -> None:
    """The request that a health check's command makes, if it makes one."""
    test = check.node("test")
    words = " ".join(each.text for each in test.walk()) if test is not None else ""
    if found := _URL.search(words):
        body = _BODY.search(words)
        given = {"path": found[1] or "/", "body": body and (body[1] or body[2] or body[3])}
        given |= {"method": "POST" if _POSTS.search(words) and not body else None}
        put_probe(
            serve,
            given | {"timeout": seconds(check.text("timeout")), "every": seconds(check.text("interval"))},
        )
    if start := seconds(check.text("start_period")):
        serve["start"] = start


def _filled(text: str) -> str:
    """A value with the defaults of the variables in it, and without doubled dollars."""
    return _DEFAULT.sub(r"\2", text).replace("$$", "$")


def _of_shell(pair: tuple[str, str | None, int]) -> tuple[str, str | None, int]:
    """A variable that is the shell's of the same name has no value of its own."""
    name, value, line = pair
    return (
        name,
        None
        if value in (f"${name}", f"${{{name}}}")
        else _filled(value or "")
        if value is not None
        else None,
        line,
    )


def _command(node: YamlNode | None) -> str:
    if node is None or node.is_null:
        return ""
    if node.kind is Kind.LIST:
        texts = [_filled(each.text) for each in node.items]
        if (
            len(texts) == 3
            and texts[0].rpartition("/")[2] in ("sh", "bash")
            and texts[1] in ("-c", "-lc", "-ec")
        ):
            return texts[2]
        return shlex.join(texts)
    return _filled(node.text).strip()


def _items(node: YamlNode | None) -> list[tuple[str, int]]:
    if node is None or node.kind is not Kind.LIST:
        return []
    return [
        (
            each.text
            if each.kind is Kind.SCALAR
            else ":".join(Section(each, []).text(key) for key in ("source", "target") if key in each.entries),
            each.line,
        )
        for each in node.items
    ]


def _mount(draft: Draft, experiment: ExperimentDraft, job: ForeignJob, text: str, line: int) -> None:
    source, mark, place = text.partition(":")
    place = place.partition(":")[0]
    if not mark or not source.startswith((".", "/", "~")):
        draft.decide(line, text, "a volume of docker: what is to be kept goes to $TRAINMASTER_OUTPUT_DIR")
    elif source in (".", "./"):
        draft.decide(line, text, "the code is where commands begin: paths below it are relative")
    else:
        put_data(draft, experiment.keys, job, source, place, line)


def _size(text: str) -> str:
    """A size as compose has it, in bytes if it has no unit; empty if it is none.

    >>> _size("2gb"), _size("${SHM:-1G}"), _size("1073741824"), _size("1.5.2g")
    ('2GB', '1GB', '1024MiB', '')
    """
    size = _filled(text).strip().upper().removesuffix("B")
    return memory(f"{math.ceil(int(size) / 2**20)}MiB" if size.isdecimal() else size)


def _hardware(experiment: ExperimentDraft, section: Section, deploy: Section) -> int:
    hardware: dict[str, object] = {}
    gpus = 0
    resources = deploy.section("resources")
    for each in (resources.section("limits"), resources.section("reservations")):
        if found := re.match(r"\d+(?:\.\d+)?", _filled(each.text("cpus"))):
            hardware["cpus"] = max(1, int(float(found[0])))
        if asked := _size(each.text("memory")):
            hardware["memory"] = asked
        devices = each.node("devices")
        for device in devices.items if devices is not None else ():
            where = Section(device, section.lines)
            if "gpu" in where.texts("capabilities"):
                gpus = where.number("count") or len(where.texts("device_ids")) or 1
    if shared := _size(section.text("shm_size")):
        hardware["shm_size"] = shared
    if gpus := gpus or int(section.text("gpus") == "all") or section.number("gpus"):
        hardware["gpus"] = gpus
    if hardware:
        experiment.keys["hardware"] = hardware
    return gpus
