"""`RecipeForm`: what is filled in on the page of a new run becomes the text of a recipe."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, StringConstraints

from trainmaster.service.quotes.quote_options import types_in
from trainmaster.spec.errors import UsageError
from trainmaster.spec.objective import POLICIES

#: Text that YAML takes as it stands, and as text.
_PLAIN: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*")
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n", ".", ".inf", ".nan"})
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_RANGE: Final = re.compile(
    r"(?P<range>-?\d+(\.\d+)?([eE][+-]?\d+)?-+\d+(\.\d+)?([eE][+-]?\d+)?)(?P<log>\s+log)?"
)
#: A line that somebody has typed.
Typed = Annotated[str, StringConstraints(strip_whitespace=True)]


class RecipeForm(BaseModel):
    """What is filled in, as it was typed; empty where nothing was.

    Attributes:
        name: of the runs.
        code: a git URL; empty for what was uploaded. digest: of what was uploaded.
        main: the script. arguments: after it. parameters: a line each, ``lr: 0.01, 0.1``. setup: a script.
        data: built-in, url or volume; empty for none. data_name: what the script knows it by. source: which.
        provider: that gives machines. policy: that chooses them. p: of Scala-Opt.
        instance, server: types of machines, of workers and of parameter servers, with commas.
        region, spot: where, and whether they may be taken back.
        workers: a number, ``auto`` or such as ``1..8``. most_workers: that a quote looks at.
        servers: parameter servers. deadline: such as ``2h``. budget, per_hour: US dollars.
        latency_ms: between the machines, one way; empty is what was measured.
        strategy: of a gang; empty for a single process. framework: by strategy if empty.
        batch, steps, epochs, examples: numbers. objective: what a quote chooses by.
        metric: that a search looks at. goal: max or min. sampler: that chooses. samples: how many tasks.
    """

    model_config = ConfigDict(frozen=True)

    name: Typed = ""
    code: Typed = ""
    digest: Typed = ""
    main: Typed = "main.py"
    arguments: Typed = ""
    parameters: Typed = ""
    setup: Typed = ""
    data: Typed = ""
    data_name: Typed = "data"
    source: Typed = ""
    provider: Typed = ""
    policy: Typed = "quote"
    instance: Typed = ""
    server: Typed = ""
    region: Typed = ""
    spot: Typed = ""
    workers: Typed = ""
    most_workers: Typed = ""
    servers: Typed = ""
    latency_ms: Typed = ""
    deadline: Typed = ""
    budget: Typed = ""
    per_hour: Typed = ""
    p: Typed = ""
    strategy: Typed = ""
    framework: Typed = ""
    batch: Typed = ""
    steps: Typed = ""
    epochs: Typed = ""
    examples: Typed = ""
    objective: Typed = ""
    metric: Typed = ""
    goal: Typed = "min"
    sampler: Typed = ""
    samples: Typed = ""

    @classmethod
    def of(cls, text: str) -> RecipeForm | None:
        """What makes a recipe when it is filled in; None if this form cannot say all of it."""
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        def read(recipe: str) -> Any:  # noqa: ANN401 - it may be anything
            return _without_nothing(YAML(typ="safe").load(recipe))

        try:
            found = read(text)
            form = cls(**{key: _typed(value) for key, value in _fields(found).items()})
            return form if read(form.text()) == found else None
        except (YAMLError, LookupError, TypeError, ValueError, AttributeError):
            return None

    def text(self) -> str:
        """The recipe. What is wrong in it is said as of any other."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"name: {_scalar(self.name or 'run')}"
        for key, value in (("code", self.code), ("provider", self.provider)):
            if value:
                yield f"{key}: {_scalar(value)}"
        policy = self.policy if self.policy in POLICIES else ""
        if policy and self.p:
            yield from _mapping("objective", {"policy": policy, "p": self.p})
        elif policy or self.objective:
            yield f"objective: {_scalar(policy or self.objective)}"
        usd = {"total": self.budget, "per_hour": self.per_hour}
        budget = {key: value and f"${value.lstrip('$')}" for key, value in usd.items()}
        yield from _mapping("budget", {**budget, "deadline": self.deadline})
        yield "experiments:"
        yield "  train:"
        yield from (f"    {line}" for line in self._experiment())

    def _experiment(self) -> Iterator[str]:
        names = [name for name, _ in self._parameters()]
        options = [part for name in names for part in (f"--{name}", f"{{{{{name}}}}}")]
        command = " ".join(["python", self.main or "main.py", *self.arguments.split(), *options])
        yield f"command: {_scalar(command)}"
        if self.setup:
            yield "setup: |"
            yield from (f"  {line}" for line in self.setup.splitlines())
        if names:
            yield "parameters:"
            yield from (f"  {_scalar(name)}: {_parameter(value)}" for name, value in self._parameters())
        if self.samples:
            yield f"samples: {_scalar(self.samples)}"
        if self.metric:
            search = {"metric": self.metric, "goal": self.goal, "sampler": self.sampler}
            yield from _mapping("search", search)
        if self.data:
            kind = "url" if self.data == "url" else "volume"
            yield f"data: {{{_scalar(self.data_name or 'data')}: {{{kind}: {_scalar(self.source)}}}}}"
        yield from _mapping("distributed", self._distributed())
        if self.framework:
            yield f"framework: {_scalar(self.framework)}"
        spot = "true" if self.spot else ""
        regions = types_in(self.region) if "," in self.region else self.region
        hardware = {"instance": types_in(self.instance), "region": regions, "spot": spot}
        yield from _mapping("hardware", hardware)
        if self.batch:
            yield f"batch: {{global: {_scalar(self.batch)}}}"
        for key, value in (("steps", self.steps), ("epochs", self.epochs), ("examples", self.examples)):
            if value:
                yield f"{key}: {_scalar(value)}"

    def _distributed(self) -> dict[str, Any]:
        """FC2's policies, and a type of servers, are for a training with parameter servers."""
        is_fc2 = self.policy in POLICIES and self.policy != "lookup"
        workers, asks = self.workers, bool(self.servers or self.server or is_fc2)
        if is_fc2 and not workers and self.most_workers.isdigit():
            workers = f"1..{self.most_workers}"
        if not (self.strategy or workers or asks or self.latency_ms):
            return {}
        strategy = self.strategy or ("ps-async" if asks else "allreduce")
        server = {"instance": types_in(self.server)} if self.server and strategy != "allreduce" else {}
        hardware = {"ps": server} if server else {}
        gang = {"workers": workers, "parameter_servers": self.servers, "hardware": hardware}
        return {"strategy": strategy, "latency_ms": self.latency_ms, **gang}

    def _parameters(self) -> Iterator[tuple[str, str]]:
        for line in self.parameters.splitlines():
            name, _, value = line.partition(":")
            if name.strip():
                yield name.strip(), value.strip()


def with_cluster(text: str, experiment: str, cluster: Mapping[str, Any]) -> str:
    """A recipe that takes one cluster of a quote; comments and order stay.

    Args:
        text: of the recipe.
        experiment: whose cluster.
        cluster: as ``quote --json`` has it: ``worker`` with ``instance`` and so on.

    Raises:
        UsageError: it has no such experiment.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    found = yaml.load(text)
    try:
        block = found["experiments"][experiment]
    except (KeyError, TypeError):
        raise UsageError(f"the recipe has no experiment {experiment!r}", "Quote it again.") from None
    worker = cluster["worker"]
    if worker["usd_per_hour"]:  # machines of one's own are not chosen
        hardware = block.setdefault("hardware", {})
        hardware["instance"], hardware["spot"] = worker["instance"], worker["spot"]
        if worker.get("region") and worker.get("provider") == found.get("provider"):
            hardware["region"] = worker["region"]
    if "distributed" in block:
        distributed, server = block["distributed"], cluster.get("parameter_server")
        distributed["workers"] = worker["processes"]
        if server and server["usd_per_hour"]:
            roles = distributed.setdefault("hardware", {})
            roles.setdefault("ps", {}).update(instance=server["instance"], spot=server["spot"])
            distributed["parameter_servers"] = server["count"] // cluster.get("tasks_at_once", 1)
        elif worker["usd_per_hour"] and "hardware" in distributed:  # they share the workers' machines
            distributed["hardware"].pop("ps", None)
    objective = found.get("objective")  # what a policy was to choose is chosen
    if (isinstance(objective, dict) and "policy" in objective) or objective in POLICIES:
        found.pop("objective")
    out = io.StringIO()
    yaml.dump(found, out)
    return out.getvalue()


def without_triggers(text: str) -> str:
    r"""The recipe of a workflow as one that runs once; any other stays as it is.

    >>> without_triggers("name: a  # mine\non: webhook\nconcurrency: skip\nseed: 1\n")
    'name: a  # mine\nseed: 1\n'
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    found = yaml.load(text)
    if not isinstance(found, dict) or "on" not in found:
        return text
    for key in ("on", "concurrency"):
        found.pop(key, None)
    out = io.StringIO()
    yaml.dump(found, out)
    return out.getvalue()


def _fields(recipe: Any) -> dict[str, Any]:  # noqa: ANN401 - it may be anything
    """What a recipe has of each field; it is compared afterwards, so what is not understood is left out."""
    one, objective, budget = recipe["experiments"]["train"], recipe.get("objective"), recipe.get("budget", {})
    policy = objective if isinstance(objective, dict) else {"policy": objective}
    gang, hardware = one.get("distributed", {}), one.get("hardware", {})
    parameters, search = one.get("parameters", {}), one.get("search", {})
    ((data_name, data),) = one.get("data", {"data": {}}).items()
    options = [part for name in parameters for part in (f"--{name}", f"{{{{{name}}}}}")]
    _, main, *arguments = one["command"].split(" ")
    lines = [
        f"{name}: {value['range']} {'log' * ('sampling' in value)}"
        if isinstance(value, dict)
        else f"{name}: {_typed(value)}"
        for name, value in parameters.items()
    ]
    chosen = policy if policy["policy"] in POLICIES else {"objective": objective}
    return {
        **{key: recipe.get(key) for key in ("name", "code", "provider")},
        **chosen,
        **{key: one.get(key) for key in ("setup", "samples", "framework", "steps", "epochs", "examples")},
        **{key: gang.get(key) for key in ("strategy", "workers", "latency_ms")},
        **{key: hardware.get(key) for key in ("instance", "region", "spot")},
        **search,
        "budget": str(budget.get("total", "")).lstrip("$"),
        "per_hour": str(budget.get("per_hour", "")).lstrip("$"),
        "deadline": budget.get("deadline"),
        "main": main,
        "arguments": " ".join(arguments[: len(arguments) - len(options)]),
        "parameters": "\n".join(lines),
        "data": next(iter(data), None),
        "data_name": data_name,
        "source": next(iter(data.values()), None),
        "servers": gang.get("parameter_servers"),
        "server": gang.get("hardware", {}).get("ps", {}).get("instance"),
        "batch": one.get("batch", {}).get("global"),
    }


def _typed(value: Any) -> str:  # noqa: ANN401 - of YAML
    """As one would type it.

    >>> _typed([0.1, "relu"]), _typed(True), _typed(None)
    ('0.1, relu', 'true', '')
    """
    if isinstance(value, list):
        return ", ".join(map(_typed, value))
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _without_nothing(value: Any) -> Any:  # noqa: ANN401 - of YAML
    """Without keys that say no, or nothing: the form leaves them out."""
    if not isinstance(value, dict):
        return value
    return {
        key: _without_nothing(each) for key, each in value.items() if each is not None and each is not False
    }


def _mapping(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    if any(values.values()):
        yield f"{key}: {_value(values)}"


def _value(value: Any) -> str:  # noqa: ANN401 - a text, a list or a mapping of them
    """A value of a recipe in one line, without what is empty.

    >>> _value({"workers": "1..6", "servers": "", "hardware": {"ps": {"instance": ("m4.large", "m5.*")}}})
    '{workers: "1..6", hardware: {ps: {instance: [m4.large, "m5.*"]}}}'
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_value(each)}' for name, each in value.items() if each)}}}"
    if isinstance(value, tuple):
        return _scalar(value[0]) if len(value) == 1 else f"[{', '.join(map(_scalar, value))}]"
    return _scalar(value)


def _scalar(text: str) -> str:
    """A value as YAML has it: numbers and words as they are, everything else in quotes.

    >>> _scalar("python main.py"), _scalar("3"), _scalar("true"), _scalar("a: b")
    ('python main.py', '3', 'true', '"a: b"')
    """
    if _NUMBER.fullmatch(text) or text in ("true", "false"):
        return text
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _parameter(text: str) -> str:
    """Values of a parameter: ``0.1, 0.2``, or ``1e-4-1e-1 log``.

    >>> _parameter("0.1, relu"), _parameter("1e-4-1e-1 log"), _parameter("18")
    ('[0.1, relu]', '{range: 1e-4-1e-1, sampling: log}', '[18]')
    """
    if found := _RANGE.fullmatch(text):
        return f"{{range: {found['range']}{', sampling: log' if found['log'] else ''}}}"
    return f"[{', '.join(_scalar(part.strip()) for part in text.split(','))}]"
