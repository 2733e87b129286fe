"""`Serve`: an experiment whose tasks do not end: replicas of a service that answer requests."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import model_serializer, model_validator

from trainmaster.spec.model_reference import REFERENCE, ModelReference
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    choice,
    duration,
    integer,
    noun,
    pattern,
    read_noun,
    shell_script,
    takes,
    text,
)

#: What services may be called: they are parts of addresses.
SERVICE_NAME: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
SERVICE_NAME_RIGHT: Final = "write up to 63 small letters, digits and '-', such as digits-api"
#: What answers for a model if the recipe has no command, and says whether it can.
BUILT_IN_COMMAND: Final = (
    'exec python -m trainmaster.inference --port {{port}} --model-dir "$TRAINMASTER_MODEL_DIR" --name '
)
BUILT_IN_HEALTH: Final = "/v2/health/ready"
_HEALTH: Final = r"/[!-~]{0,500}"
_TASK: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){1,2}"
_MODEL_RIGHT: Final = "write a registered model such as digits@production, or RUN/EXPERIMENT/TASK"
MOST_REPLICAS: Final = 1000
#: What a service cannot have: its tasks do not end, and are all alike.
NOT_FOR_SERVICES: Final = (
    "parameters", "samples", "search", "distributed", "require", "promote", "timeout", "silence", "steps",
    "epochs", "examples", "batch", "until", "target", "profile", "retries",
)  # fmt: skip


class Replicas(Noun):
    """How many replicas answer.

    Attributes:
        fewest: at any time; 0: none without requests.
        most: at any time, but for those that go while others take their place.
    """

    fewest: Annotated[int, Key("min", integer(0, MOST_REPLICAS))] = 1
    most: Annotated[int, Key("max", integer(1, MOST_REPLICAS), required="write how many there may be")]

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        fewest, most = values.get("fewest", 1), values.get("most")
        if most is not None and fewest > most:
            problems.add(node.entries["min"], (*path, "min"), f"min {fewest} is more than max {most}")


class Scale(Noun):
    """What says how many replicas there are.

    Attributes:
        in_flight: requests that one replica has at a time.
        down_after_s: fewer are enough once that was so for this long.
    """

    in_flight: Annotated[
        int, Key("in_flight", integer(1, 1_000_000), required="write how many requests one replica has")
    ]
    down_after_s: Annotated[float, Key("down_after", duration())] = 300.0


def _body(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read what is sent: a text as it stands, anything else as JSON."""
    if node.kind is not Kind.SCALAR:
        return json.dumps(node.data)
    return text("write a text, or a mapping that is sent as JSON")(node, path, problems)


takes(_body, type=["string", "number", "boolean", "object", "array"])


class HealthCheck(Noun):
    """How a replica is asked whether it can work.

    Attributes:
        path: that is asked for.
        method: GET, or POST where only a request as users send it tells; a `body` makes it POST.
        body: what is sent: a text, or a mapping that is sent as JSON.
        status: the answer that counts; None: any from 200 to 399.
        timeout_s: no answer within so long is none.
        every_s: a replica that works is asked so often.
    """

    path: Annotated[str, Key("path", pattern(_HEALTH, "write a path such as /healthz"))] = "/"
    method: Annotated[str | None, Key("method", choice("GET", "POST"))] = None
    body: Annotated[str, Key("body", _body)] = ""
    status: Annotated[int | None, Key("status", integer(100, 599))] = None
    timeout_s: Annotated[float, Key("timeout", duration())] = 5.0
    every_s: Annotated[float, Key("every", duration())] = 2.0
    also = (pattern(_HEALTH, "write a path such as /healthz"),)

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Take a path by itself, too."""
        if node.kind is Kind.SCALAR:
            given = replace(node, stands_at=path)
            return replace(node, kind=Kind.MAPPING, entries={"path": given}, keys={"path": given})
        return super().prepare(node, path, problems)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        if values.get("method") == "GET" and "body" in values:
            problems.add(node.keys["body"], (*path, "body"), "a body of a GET; write `method: POST`")

    @model_serializer
    def _as_written(self) -> str | dict[str, object]:
        given = {name: value for name, value in self if value != type(self).model_fields[name].default}
        return self.path if not given.keys() - {"path"} else given

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_written(cls, given: object) -> object:
        """Take back what `_as_written` gives: a server's readers of recipes answer with that."""
        return {"path": given} if isinstance(given, str) else given

    @property
    def asks(self) -> str:
        """The method and the path."""
        return f"{self.method or ('POST' if self.body else 'GET')} {self.path}"


def _read_replicas(node: YamlNode, path: Path, problems: Problems) -> Replicas:
    """Read a number, or bounds."""
    if node.kind is Kind.MAPPING:
        return read_noun(Replicas, node, path, problems)
    count = integer(1, MOST_REPLICAS)(node, path, problems)
    return Replicas(fewest=count, most=count)


takes(_read_replicas, any=[integer(1, MOST_REPLICAS), noun(Replicas)])


class Serve(Noun):
    """A service. Its ``command`` is that of its experiment.

    Attributes:
        name: by which it is asked; None for that of the recipe, with the experiment's if there are several.
        port: at which each replica listens; None: one is chosen for each.
        health: what answers once a replica can work: a path, or a request.
        replicas: how many there are.
        scale: what says how many, between the bounds; None: as many as `Replicas.fewest`.
        model: that each replica finds in TRAINMASTER_MODEL_DIR: ``digits@production`` or a task's.
        start_s: a replica that has not answered for so long after its start never does.
        hang_s: one that has not answered for so long although it did is replaced.
        drain_s: one that gets no more requests has so long for those that it has.
    """

    name: Annotated[str | None, Key("name", pattern(SERVICE_NAME, SERVICE_NAME_RIGHT))] = None
    port: Annotated[int | None, Key("port", integer(1, 65535))] = None
    health: Annotated[HealthCheck, Key("health", noun(HealthCheck))] = HealthCheck()
    replicas: Annotated[Replicas, Key("replicas", _read_replicas)] = Replicas(fewest=1, most=1)
    scale: Annotated[Scale | None, Key("scale", noun(Scale))] = None
    model: Annotated[str | None, Key("model", pattern(f"{REFERENCE}|{_TASK}", _MODEL_RIGHT))] = None
    start_s: Annotated[float, Key("start", duration())] = 600.0
    hang_s: Annotated[float, Key("hang", duration())] = 30.0
    drain_s: Annotated[float, Key("drain", duration(may_be_zero=True))] = 60.0
    hoisted = (("command", shell_script),)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        replicas = values.get("replicas", Replicas(fewest=1, most=1))
        follows = "model" in values and _is_moving(values["model"])
        if "port" in node.entries and (replicas.most > 1 or follows):
            why = "of several replicas" if replicas.most > 1 else "of replicas that follow an alias"
            message = f"one port {why}, which may be on one machine; leave it out, and listen at {{{{port}}}}"
            problems.add(node.entries["port"], (*path, "port"), message)
        health = values.get("health", HealthCheck())
        if health.timeout_s + health.every_s >= values.get("hang_s", 30.0):
            message = f"a check every {health.every_s:g} s that takes up to {health.timeout_s:g} s; "
            problems.add(
                node.entries.get("hang") or node.entries["health"],
                (*path, "hang"),
                f"{message}write a `hang` that is longer than both together",
            )
        is_range = replicas.fewest != replicas.most
        if is_range and "scale" not in node.entries:
            message = "bounds without `scale`; add scale: {in_flight: N}, or write one number"
            problems.add(node.entries["replicas"], (*path, "replicas"), message)
        if "scale" in node.entries and not is_range:
            message = "`scale` without bounds; write replicas: {min: A, max: B}"
            problems.add(node.entries["scale"], (*path, "scale"), message)

    @property
    def follows_alias(self) -> bool:
        """Whether what its model means may change while it runs."""
        return self.model is not None and _is_moving(self.model)

    @property
    def most_at_once(self) -> int:
        """Replicas that there may be while one version takes the place of another one."""
        return self.replicas.most + int(self.follows_alias)


def service_name(recipe: str, experiment: str | None) -> str:
    """What a service is called whose recipe does not say it.

    >>> service_name("Digits_v2", None), service_name("digits", "api")
    ('digits-v2', 'digits-api')
    """
    whole = recipe if experiment is None else f"{recipe}-{experiment}"
    return re.sub(r"[^a-z0-9]+", "-", whole.lower())[:63].strip("-") or "service"


def _is_moving(model: str) -> bool:
    return "/" not in model and ModelReference.parse(model).version is None


def lift_command(node: YamlNode, path: Path, problems: Problems) -> YamlNode:
    """Move ``command`` out of ``serve``, where people write it, to beside it."""
    serve = node.entries.get("serve")
    if serve is None or serve.kind is not Kind.MAPPING or "command" not in serve.entries:
        return node
    if "command" in node.entries:
        where = (*path, "serve", "command")
        problems.add(serve.entries["command"], where, "`command` stands beside `serve` already; give it once")
    return node.hoisted("serve", "command", path)


def check_serve(values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
    """Note what a service cannot have; without a command, give it that of the built-in server."""
    serve: Serve | None = values.get("serve")
    if "serve" not in node.entries:
        return
    if serve is not None and serve.model is not None and "command" not in node.entries:
        model = re.sub(r"[/@].*", "", serve.model) if "/" not in serve.model else path[-1]
        values["command"] = BUILT_IN_COMMAND + model
        if "health" not in node.entries["serve"].entries:
            values["serve"] = serve.model_copy(update={"health": HealthCheck(path=BUILT_IN_HEALTH)})
    for key in NOT_FOR_SERVICES:
        if key in node.entries:
            message = f"`{key}` of a service; its tasks are all alike and do not end: leave it out"
            problems.add(node.keys[key], (*path, key), message)


def path_of_model(command: str) -> str:
    """Where a service is asked for its model, below its address; empty for what does not say so.

    >>> path_of_model(BUILT_IN_COMMAND + "digits"), path_of_model("python serve.py --port {{port}}")
    ('v2/models/digits', '')
    """
    found = re.search(r"-m trainmaster\.inference\s.*--name[ =]([\w.-]+)", command)
    return f"v2/models/{found[1]}" if found else ""


def has_command(experiment: YamlNode) -> bool:
    """Whether an experiment says what to run, beside ``serve`` or in it; or which model answers."""
    serve = experiment.entries.get("serve")
    return "command" in experiment.entries or (
        serve is not None and bool({"command", "model"} & set(serve.entries))
    )
