"""`read_skypilot`: a task of SkyPilot, a service or a pipeline of several. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from trainmaster.service.conversion.draft import Draft, ExperimentDraft
from trainmaster.service.conversion.job import Beside, ForeignJob
from trainmaster.service.conversion.yaml_values import (
    PRIVATE,
    SCALES,
    SPOT_OR_NOT,
    Section,
    bounds,
    least,
    one_or_all,
    put_data,
    put_labels,
    put_port,
    put_probe,
    put_provider,
    put_variables,
)
from trainmaster.spec.errors import UsageError
from trainmaster.spec.foreign import POOL, POOL_HINT, WIDE_SERVICE, WIDE_SERVICE_HINT
from trainmaster.spec.node import Kind, Wording, compose

SKYPILOT: Final = Wording("a task of SkyPilot", "tasks", "a mapping with `run`")
_DOCUMENT: Final = re.compile(r"^---[ \t]*(?:#.*)?$", re.MULTILINE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAMED: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
#: What a path or URL of data cannot have here: a variable without a value, a store of another cloud.
_UNKNOWN: Final = re.compile(r"\$\{?\w+\}?|<[\w-]+>|^(?:oci|nebius|r2|cos)://")
_COUNTED: Final = re.compile(r"([A-Za-z][\w.-]*)(?::\s*([\d.]+))?")
_RECOVERED: Final = "lost machines are replaced, and the run goes on from its checkpoint"
_REASONS: Final = {
    "disk_tier": "disks are the provider's usual ones",
    "network_tier": "networks are the provider's usual ones",
    "autostop": "a run gives its machines back; `--keep 30m` keeps them",
    "spot_recovery": _RECOVERED,
    "image_id": "machines boot the provider's image; `docker:NAME` is a `container`",
    "ports": "`trainmaster port-forward` leads to ports",
    "load_balancing_policy": "the server in front picks the replica",
    "instance_type": "",
}
#: Whose regions have the same names here.
_OF_CLOUDS: Final = ("aws", "lab", "im")


def read_skypilot(source: str, file: str, name: str, beside: Beside) -> Draft:
    """A draft of the recipe that a file is.

    Args:
        source: what stands in it.
        file: its name in messages.
        name: of the recipe, if the file gives none.
        beside: the text of a file that its commands name.

    Raises:
        RecipeError: it is no YAML, with the place in it.
        UsageError: it describes no job, or one that no recipe can say.
    """
    draft = Draft("SkyPilot", name)
    lines = source.split("\n")
    roots = [compose(text, file, SKYPILOT) for text in _documents(source)]
    is_parallel = False
    for number, root in enumerate(roots):
        section = Section(root, lines)
        if "pool" in section and "run" not in section:
            raise UsageError(f"line {section.line('pool')}: {POOL}", POOL_HINT)
        if "run" not in section and "setup" not in section and len(roots) > 1:  # the head of a pipeline
            draft.name = _named(section.text("name"), draft.name)
            is_parallel = section.text("execution") == "parallel" or is_parallel
            section.rest(draft, {})
            continue
        own = section.text("name")
        if len(roots) == 1:
            draft.name = _named(own, draft.name)
        experiment = ExperimentDraft("main" if len(roots) == 1 else _named(own, f"task-{number}"))
        if draft.experiments and not is_parallel:
            experiment.keys["after"] = draft.experiments[-1].name
        draft.experiments.append(experiment)
        _task(draft, experiment, section, beside)
    return draft


def _documents(source: str) -> list[str]:
    """The documents of a file, each with as many lines before it as there are."""
    places = [0, *(found.end() for found in _DOCUMENT.finditer(source)), len(source)]
    texts = [source[: found.start()] for found in _DOCUMENT.finditer(source)] + [source]
    found = [
        "\n" * source.count("\n", 0, place) + text[place:] for place, text in zip(places, texts, strict=False)
    ]
    return [text for text in found if re.search(r"^\s*[^\s#]", text, re.MULTILINE)]


def _named(name: str, other: str) -> str:
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or other


def _task(draft: Draft, experiment: ExperimentDraft, section: Section, beside: Beside) -> None:
    resources = section.section("resources")
    gpus = _resources(draft, experiment, resources)
    nodes = section.number("num_nodes") or 1
    put_variables(draft, experiment.keys, section.pairs("envs"))
    put_variables(draft, experiment.keys, section.pairs("secrets"), secret=True)
    _code(draft, section)
    known = {"SKYPILOT_NUM_NODES": nodes, **({"SKYPILOT_NUM_GPUS_PER_NODE": gpus} if gpus else {})}
    node = section.node("run")
    command = node.text if node is not None and node.kind is Kind.SCALAR else ""
    job = ForeignJob("skypilot", command or "true", section.first_line_of("run"), nodes, 1, gpus, known)
    setup = section.node("setup")
    job.setup = setup.text if setup is not None and setup.kind is Kind.SCALAR else ""
    for key in ("file_mounts", "storage_mounts", "volumes"):
        _mounts(draft, experiment, section, key, job)
    if "service" in section:
        if nodes > 1:
            raise UsageError(f"line {section.line('num_nodes')}: {WIDE_SERVICE}", WIDE_SERVICE_HINT)
        _service(draft, experiment, section.section("service"), resources, job)
    job.fill(draft, experiment, beside)
    put_labels(draft, resources, "labels")
    if price := resources.text("max_hourly_cost"):
        draft.keys["budget"] = {"per_hour": f"${price}"}
    recovery = resources.section("job_recovery")
    if retries := recovery.number("max_restarts_on_errors"):
        experiment.keys["retries"] = retries
    elif "job_recovery" in resources:
        draft.drop(resources.line("job_recovery"), resources.written("job_recovery"), _RECOVERED)
    recovery.rest(draft, {"strategy": _RECOVERED, "recover_on_exit_codes": "`retries` counts all errors"})
    resources.rest(draft, _REASONS)
    section.rest(draft, _REASONS)


def _resources(draft: Draft, experiment: ExperimentDraft, resources: Section) -> int:
    """What machines must have; how many GPUs."""
    hardware: dict[str, object] = {}
    choices = [resources]
    lists = ("any_of", "ordered", "candidates")
    for key in lists:
        node = resources.node(key)
        if node is not None and node.kind is Kind.LIST:
            choices += [Section(each, resources.lines) for each in node.items]
            if key == "ordered":
                draft.decide(
                    resources.line(key), resources.written(key), "the cheapest comes first, or `objective`"
                )
    models, counts = dict[str, None](), set[int]()
    clouds, regions, spots = list[str](), list[str](), set[bool]()
    for each in choices:
        for model, count in _accelerators(each):
            models[model] = None
            counts.add(count)
        cloud, _, region = each.text("infra").replace("*", "").partition("/")
        cloud, region = each.text("cloud") or cloud, each.text("region") or region.partition("/")[0]
        clouds += [cloud.lower()] if cloud else []
        regions += [region] if region and (not cloud or cloud.lower() in _OF_CLOUDS) else []
        spots |= {each.flag("use_spot")} if "use_spot" in each else set()
    put_provider(draft, clouds, _line(resources, "cloud", "infra", *lists))
    gpus = min(counts, default=0)
    sizes = {"cpus": bounds(resources.text("cpus"))}
    if models:
        hardware |= {"gpu": one_or_all(list(models)), "gpus": gpus}
    if len(counts) > 1 and len(models) == 1:
        hardware["gpus"] = f"{gpus}..{max(counts)}"
    elif len(counts) > 1:
        draft.decide(
            resources.line("accelerators"), str(sorted(counts)), "GPUs of a machine: the fewest is taken"
        )
    sizes |= {key: bounds(resources.text(key), size=True) for key in ("memory", "disk_size")}
    for key, asked in sizes.items():
        if asked:
            hardware[key.removesuffix("_size")] = asked
        elif key in resources:
            draft.drop(resources.line(key), resources.written(key), "whole CPUs, or a size with its unit")
    if instance := resources.text("instance_type"):
        hardware["instance"] = instance
    if regions:
        hardware["region"] = one_or_all(list(dict.fromkeys(regions)))
    if spots:
        hardware["spot"] = spots == {True}
    if len(spots) > 1:
        draft.decide(_line(resources, *lists), "use_spot: true, false", SPOT_OR_NOT)
    image = resources.text("image_id")
    if image.startswith("docker:"):
        experiment.keys["container"] = image.removeprefix("docker:")
    elif image:
        draft.drop(resources.line("image_id"), resources.written("image_id"), _REASONS["image_id"])
    if hardware:
        experiment.keys["hardware"] = hardware
    return gpus


def _accelerators(section: Section) -> list[tuple[str, int]]:
    node = section.node("accelerators")
    if node is None or node.is_null:
        return []
    if node.kind is Kind.MAPPING:
        pairs = [(name, "" if each.is_null else each.text) for name, each in node.entries.items()]
    else:
        found = [_COUNTED.fullmatch(each.text.strip()) for each in (node.items or [node])]
        pairs = [(each[1], each[2] or "") for each in found if each]
    split = [_COUNTED.fullmatch(f"{name}:{count}" if count else name) for name, count in pairs]
    return [(each[1], max(1, least(each[2] or "1"))) for each in split if each]


def _line(section: Section, *keys: str) -> int:
    """Of the first of these that there is."""
    return section.line(next((key for key in keys if key in section), ""))


def _code(draft: Draft, section: Section) -> None:
    node = section.node("workdir")
    if node is None or node.is_null:
        return
    if node.kind is Kind.MAPPING:
        where = Section(node, section.lines)
        ref = where.text("ref")
        draft.keys["code"] = where.text("url") + (f"@{ref}" if ref else "")
    elif node.text.strip() not in (".", "./"):
        draft.keys["code"] = node.text.strip()


def _mounts(draft: Draft, experiment: ExperimentDraft, section: Section, key: str, job: ForeignJob) -> None:
    node = section.node(key)
    if node is None or node.kind is not Kind.MAPPING:
        return
    for place, each in node.entries.items():
        line = node.keys[place].line
        source = (
            each.text.strip() if each.kind is Kind.SCALAR else Section(each, section.lines).text("source")
        )
        source = _with_values(source, cast("Mapping[str, str]", experiment.keys.get("env") or {}))
        if PRIVATE.search(place) or PRIVATE.search(source):
            draft.drop(line, f"{place}: {source}", "keys stay where they are: members of a gang need none")
        elif key == "volumes" and source:
            draft.decide(
                line, f"{place}: {source}", "`trainmaster volume push`, and `data: {NAME: {volume: V}}`"
            )
        elif unknown := _UNKNOWN.search(source):
            draft.decide(
                line, f"{place}: {source}", f"`data: {{NAME: {{url: URL}}}}`; {unknown[0]} is unknown here"
            )
        elif not source:
            draft.decide(line, place, "what is to be kept goes to $TRAINMASTER_OUTPUT_DIR")
        else:
            put_data(draft, experiment.keys, job, source, place, line)
            if each.kind is Kind.MAPPING and Section(each, section.lines).text("mode").upper() != "COPY":
                draft.decide(line, place, "it is read only: what is written goes to $TRAINMASTER_OUTPUT_DIR")


def _with_values(found: Any, env: Mapping[str, str]) -> Any:  # noqa: ANN401 - whatever is written
    """What is sent, with the values of the variables that it names."""
    if isinstance(found, str):
        return _NAMED.sub(lambda name: env.get(name[1] or name[2], name[0]), found)
    if isinstance(found, list):
        return [_with_values(each, env) for each in found]
    return {key: _with_values(each, env) for key, each in found.items()} if isinstance(found, dict) else found


def _service(
    draft: Draft, experiment: ExperimentDraft, service: Section, resources: Section, job: ForeignJob
) -> None:
    serve: dict[str, object] = {}
    probe = service.node("readiness_probe")
    if probe is not None and probe.kind is Kind.MAPPING:
        ready = Section(probe, service.lines)
        data = ready.node("post_data")
        body = (
            _with_values(data.data, cast("Mapping[str, str]", experiment.keys.get("env") or {}))
            if data is not None
            else None
        )
        timeout = ready.number("timeout_seconds")
        put_probe(
            serve,
            {"path": ready.text("path") or "/", "body": body, "timeout": f"{timeout}s" if timeout else None},
        )
        if delay := ready.number("initial_delay_seconds"):
            serve["start"] = f"{delay}s"
        ready.rest(draft, {})
    elif probe is not None:
        serve["health"] = probe.text.strip()
    policy = service.section("replica_policy")
    fewest = service.number("replicas") or policy.number("min_replicas") or 1
    policy.rest(draft, {}, {"target_qps_per_replica": SCALES, "max_replicas": SCALES})
    put_port(
        draft,
        serve,
        job,
        resources.text("ports") or service.text("port", "ports"),
        fewest,
        service.line("replicas"),
    )
    service.rest(draft, _REASONS)
    experiment.keys["serve"] = serve
