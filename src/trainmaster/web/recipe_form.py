"""`RecipeForm`: what is filled in on the page of a new run becomes the text of a recipe."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, StringConstraints

from trainmaster.spec.errors import UsageError

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
        provider: that gives machines. policy: that chooses them. instance, server: types of machines.
        region, spot: where, and whether they may be taken back.
        workers: a number, ``auto`` or such as ``1..8``. most_workers: that a quote looks at.
        servers: parameter servers. deadline: such as ``2h``. budget: US dollars.
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
    deadline: Typed = ""
    budget: Typed = ""
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

    def text(self) -> str:
        """The recipe. What is wrong in it is said as of any other."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"name: {_scalar(self.name or 'run')}"
        for key, value in (("code", self.code), ("provider", self.provider), ("objective", self.objective)):
            if value:
                yield f"{key}: {_scalar(value)}"
        budget = {"total": self.budget and f"${self.budget.lstrip('$')}", "deadline": self.deadline}
        yield from _mapping("budget", budget)
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
        gang = {"workers": self.workers, "parameter_servers": self.servers}
        if self.strategy or any(gang.values()):
            usual = "ps-async" if self.servers else "allreduce"
            yield from _mapping("distributed", {"strategy": self.strategy or usual, **gang})
        if self.framework:
            yield f"framework: {_scalar(self.framework)}"
        hardware = {"instance": self.instance, "region": self.region, "spot": "true" if self.spot else ""}
        yield from _mapping("hardware", hardware)
        if self.batch:
            yield f"batch: {{global: {_scalar(self.batch)}}}"
        for key, value in (("steps", self.steps), ("epochs", self.epochs), ("examples", self.examples)):
            if value:
                yield f"{key}: {_scalar(value)}"

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
    if "distributed" in block:
        block["distributed"]["workers"] = worker["processes"]
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


def _mapping(key: str, values: Mapping[str, str]) -> Iterator[str]:
    given = [f"{name}: {_scalar(value)}" for name, value in values.items() if value]
    if given:
        yield f"{key}: {{{', '.join(given)}}}"


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
