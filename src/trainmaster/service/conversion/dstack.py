"""`read_dstack`: a task or a service of dstack. Pure."""

from __future__ import annotations

import re
from typing import Final

from trainmaster.service.conversion.draft import Draft, ExperimentDraft
from trainmaster.service.conversion.job import Beside, ForeignJob
from trainmaster.service.conversion.shell import Script
from trainmaster.service.conversion.yaml_values import (
    PRIVATE,
    SCALES,
    SPOT_OR_NOT,
    Section,
    bounds,
    least,
    memory,
    one_or_all,
    put_labels,
    put_port,
    put_probe,
    put_provider,
    put_variables,
    seconds,
)
from trainmaster.spec.errors import UsageError
from trainmaster.spec.foreign import NO_JOBS
from trainmaster.spec.node import Kind, Wording, YamlNode, compose

DSTACK: Final = Wording("a configuration of dstack", "configurations", "a mapping with `type`")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODEL: Final = re.compile(r"(?=.*[A-Za-z])(?![\d.]+[KMGT]B?\b)[A-Za-z][\w.-]*|\d+[A-Za-z][\w.-]*(?<!GB)")
_INTERPOLATED: Final = re.compile(r"\$\{\{\s*([^{}]*?)\s*\}\}")
_REASONS: Final = {
    "type": "", "python": "the Python of the machine is taken; `container: python:3.12` brings another",
    "repos": "the code is what is sent",
    "ports": "`trainmaster port-forward` leads to ports", "model": "a service answers at its own address",
    "auth": "who may ask is the server's", "gateway": "a service is behind `trainmaster server`",
    "idle_duration": "`trainmaster run --keep 30m` keeps machines", "fleets": "machines are rented for runs",
    "backends": "where it runs is the `provider`", "creation_policy": "machines are rented for runs",
    "privileged": "containers have no more rights",
    "nvcc": "an image with CUDA's compiler is a `container`",
    "ide": "", "home_dir": "code is the working directory",
}  # fmt: skip
_DECISIONS: Final = {
    "scaling": SCALES,
    "working_dir": "commands begin where the code is",
    "docker": "a container in a container: take an image",
    "retry": "lost machines are replaced; errors: `retries: N`; no capacity: `budget: {wait: T}`",
    "schedule": "`on: {schedule: ...}`, on a server",
    "priority": "`priority: low`, `normal` or `high`, on a server",
}
#: What is done once, before what is trained: it makes environments or brings files.
_PREPARES: Final = re.compile(
    r"(?:uv\s+)?pip3?\s|uv\s|conda\s|mamba\s|poetry\s|python[\d.]*\s+-m\s+(?:pip|venv)\s|sudo\s|apt(?:-get)?\s|cmake\s"
    r"|git\s+(?:clone|checkout|submodule|apply)|wget\s|curl\s[^|]*-[oO]|tar\s|unzip\s|make\b|python[\d.]*\s+setup\.py"
)
#: What later commands of the same shell need, too.
_STAYS: Final = re.compile(r"(?:cd|export|source|\.|pushd)\s|[A-Za-z_]\w*=")


def read_dstack(source: str, file: str, name: str, beside: Beside) -> Draft:
    """A draft of the recipe that a file is.

    Args:
        source: what stands in it.
        file: its name in messages.
        name: of the recipe, if the file gives none.
        beside: the text of a file that its commands name.

    Raises:
        RecipeError: it is no YAML, with the place in it.
        UsageError: it describes no job.
    """
    section = Section(compose(source, file, DSTACK), source.split("\n"))
    kind = section.text("type")
    if kind in NO_JOBS:
        raise UsageError(f"{file}: a {kind} of dstack, which is no job", f"{NO_JOBS[kind]}.")
    own = section.text("name")
    draft = Draft("dstack", own if _NAME.fullmatch(own) else name)
    experiment = ExperimentDraft("main")
    draft.experiments.append(experiment)
    nodes = section.number("nodes") or 1
    gpus = _hardware(draft, experiment, section)
    put_variables(draft, experiment.keys, section.pairs("env"))
    if image := section.text("image"):
        experiment.keys["container"] = image
    _limits(draft, experiment, section)
    known = {"DSTACK_NODES_NUM": nodes}
    known |= {"DSTACK_GPUS_PER_NODE": gpus, "DSTACK_GPUS_NUM": gpus * nodes} if gpus else {}
    job = ForeignJob(
        "dstack", "true", section.first_line_of("commands"), nodes, 1, gpus, known, begins="set +u"
    )
    _commands(draft, section.node("commands"), job, is_run=kind == "task")
    _volumes(draft, section)
    _files(draft, section)
    put_labels(draft, section, "tags")
    if kind == "service":
        serve: dict[str, object] = {}
        put_port(
            draft, serve, job, section.text("port").partition(":")[0], section.number("replicas") or 1, 1
        )
        if not section.text("replicas").isdecimal() and "replicas" in section:
            draft.decide(section.line("replicas"), section.written("replicas"), SCALES)
        _probes(draft, section, serve)
        experiment.keys["serve"] = serve
    job.fill(draft, experiment, beside)
    section.rest(draft, _REASONS, _DECISIONS)
    return draft


def _commands(draft: Draft, node: YamlNode | None, job: ForeignJob, *, is_run: bool) -> None:
    """The commands; those that only make ready what the others need become the setup."""
    if node is None:
        return
    items = node.items if node.kind is Kind.LIST else [node]
    texts = []
    for each in items:
        for found in _INTERPOLATED.finditer(each.text):
            draft.decide(each.line, found[0], "write what it stands for")
        texts.append(_INTERPOLATED.sub("", each.text).rstrip())
    job.line = items[0].line if items else 1
    last = max((at for at, text in enumerate(texts) if _PREPARES.match(text.lstrip())), default=-1)
    if not is_run or 0 <= last < len(texts) - 1:
        cut = last + 1
        job.setup = "\n".join(texts[:cut])
        texts = [text for text in texts[:cut] if _stays(text)] + texts[cut:]
    job.command = "\n".join(texts)


def _stays(text: str) -> bool:
    commands = Script(text).commands()
    return len(commands) == 1 and _STAYS.match(text.lstrip()) is not None


def _hardware(draft: Draft, experiment: ExperimentDraft, section: Section) -> int:
    resources = section.section("resources")
    hardware: dict[str, object] = {}
    cpu = resources.text("cpu")
    if cpus := bounds(cpu.rpartition(":")[2]):
        hardware["cpus"] = cpus
    for key in ("memory", "shm_size"):
        if asked := bounds(resources.text(key), size=True):
            hardware[key] = asked
    disk = resources.section("disk").text("size") or resources.text("disk")
    if asked := memory(disk):
        hardware["disk"] = asked
    gpus = _gpus(draft, resources, hardware)
    regions = section.texts("regions")
    if regions:
        hardware["region"] = one_or_all(regions)
    if instances := section.texts("instance_types"):
        hardware["instance"] = one_or_all(instances)
    if spot := section.text("spot_policy"):
        if spot == "auto":
            draft.decide(section.line("spot_policy"), "spot_policy: auto", SPOT_OR_NOT)
        else:
            hardware["spot"] = spot == "spot"
    put_provider(draft, section.texts("backends"), section.line("backends"))
    resources.rest(draft, _REASONS)
    if hardware:
        experiment.keys["hardware"] = hardware
    return gpus


def _gpus(draft: Draft, resources: Section, hardware: dict[str, object]) -> int:
    """GPUs of a machine: ``H100:80GB:8``, ``A100,H100:1..``, ``24GB``, ``1..8``, or a mapping."""
    node = resources.node("gpu")
    if node is None or node.is_null:
        return 0
    models, counted, sizes = list[str](), "", ""
    if node.kind is Kind.MAPPING:
        where = Section(node, resources.lines)
        models, counted, sizes = where.texts("name"), where.text("count"), where.text("memory")
        where.rest(draft, {})
    else:
        for part in node.text.split(":"):
            if re.fullmatch(r"\s*\d*(?:\.\.\d*)?\s*", part):
                counted = part
            elif re.match(r"\s*(?:\.\.)?[\d.]+\s*[GM]B", part, re.IGNORECASE):
                sizes = part.strip()
            else:
                models += [each.strip() for each in part.split(",")]
    if asked := bounds(sizes, size=True):
        hardware["gpu_memory"] = asked
    if models:
        hardware["gpu"] = one_or_all(models)
    hardware["gpus"] = bounds(counted) or 1
    return least(counted) or 1


def _probes(draft: Draft, section: Section, serve: dict[str, object]) -> None:
    """How replicas are asked: the first of them."""
    node = section.node("probes")
    if node is None or node.kind is not Kind.LIST or not node.items:
        return
    first = Section(node.items[0], section.lines)
    probe: dict[str, object] = {"path": first.text("url") or "/", "body": first.text("body")}
    probe["method"] = "POST" if first.text("method").lower() == "post" else None
    probe |= {key: seconds(first.text(name)) for key, name in (("timeout", "timeout"), ("every", "interval"))}
    put_probe(serve, probe)
    first.text("type")
    first.rest(draft, {"ready_after": "one good answer will do"}, {"headers": "no header is sent"})
    for other in node.items[1:]:
        draft.decide(other.line, "probes", "one of them is asked")


def _limits(draft: Draft, experiment: ExperimentDraft, section: Section) -> None:
    if price := section.text("max_price"):
        draft.keys["budget"] = {"per_hour": f"${price}"}
    if (duration := section.text("max_duration")) and duration not in ("off", "-1"):
        experiment.keys["timeout"] = duration if not duration.isdecimal() else f"{duration}s"
    if (grace := section.text("stop_duration")) and grace != "off":
        experiment.keys["grace"] = grace if not grace.isdecimal() else f"{grace}s"


def _volumes(draft: Draft, section: Section) -> None:
    """Volumes, each ``NAME:PATH`` or a mapping; directories of machines begin with a slash."""
    node = section.node("volumes")
    for each in node.items if node is not None else ():
        where = Section(each, section.lines)
        names = where.texts("name") or [where.text("instance_path") or each.text.partition(":")[0]]
        path = where.text("path") or each.text.partition(":")[2]
        if names[0].startswith("/"):
            draft.drop(each.line, f"{names[0]}:{path}", "a cache of the machine: models and data are `data`")
        elif path:
            variable = re.sub(r"\W", "_", names[0])
            words = f"`data: {{{variable}: {{volume: {names[0]}}}}}` after `volume push`"
            words += "; what is written goes to $TRAINMASTER_OUTPUT_DIR"
            draft.decide(each.line, f"{', '.join(names)}:{path}", words)


def _files(draft: Draft, section: Section) -> None:
    """What is sent: it is in the code, or it has to be brought there."""
    node = section.node("files")
    for each in node.items if node is not None else ():
        source = Section(each, section.lines).text("local_path") or each.text.partition(":")[0]
        if PRIVATE.search(source):
            draft.drop(each.line, source, "keys stay where they are: members of a gang need none")
        elif source.startswith(("~", "/", "..")):
            draft.decide(
                each.line, source, "outside of the code: have it there, or as `data: {NAME: {dir: DIR}}`"
            )
        else:
            draft.drop(each.line, source, "it is sent with the code, as all of it is")
