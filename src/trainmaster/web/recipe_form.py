"""`RecipeForm`: fields and the text of a recipe are one document: a field changes its key alone.

Beside it: keys of forms, so that one that is sent twice starts one run, and mistakes as lines of a form.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from trainmaster.control.attempt.data_sources import BUILT_IN_PREFIX
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.quotes.quote_options import types_in
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import RecipeError, TrainmasterError, UsageError
from trainmaster.spec.node import Kind, YamlNode, compose
from trainmaster.spec.objective import POLICIES
from trainmaster.spec.units import parse_dollars
from trainmaster.web.recipe_text import Path, RecipeText
from trainmaster.web.rendering import for_a_form, for_readers


def mistakes_of(error: Exception | None, caller: Caller) -> list[str]:
    """Lines of an error that a form led to, for who filled it in; none without one."""
    if error is None:
        return []
    if isinstance(error, RecipeError):
        return [
            f"line {m.line}, column {m.column}: {m.key_path and f'{m.key_path}: '}{for_a_form(m.message)}"
            for m in error.mistakes
        ]
    if isinstance(error, TrainmasterError):
        return [*str(error.args[0]).splitlines(), *filter(None, [for_readers(error.hint, caller)])]
    return [str(error)]


def amount_of(text: str) -> float | None:
    """US dollars that somebody typed; None for nothing.

    Raises:
        UsageError: it is no amount.

    >>> amount_of("$2.50"), amount_of("2.50"), amount_of(" ")
    (2.5, 2.5, None)
    """
    try:
        return parse_dollars(text) if text.strip() else None
    except ValueError:
        raise UsageError(f"{text!r} is no amount of US dollars", "Write one, such as 20.") from None


def agreed_usd(typed: str, recipe: str) -> float | None:
    """What somebody agrees to who sends a recipe: what he typed, else its own ``budget.total``.

    Raises:
        UsageError: it is no amount.

    >>> [agreed_usd(typed, "budget: {total: $0.5}") for typed in ("", "2")], agreed_usd("", "name: a")
    ([0.5, 2.0], None)
    """
    form = RecipeForm.of(recipe)
    return amount_of(typed or (form.budget if form is not None else ""))


#: The field of a key of the recipe, by its last part, where they are not called the same.
_FIELD_OF: Final = {
    "total": "budget",
    "global": "batch",
    "command": "main",
    "data": "source",
    "parameter_servers": "servers",
}


def wrong_fields(error: Exception | None) -> dict[str, list[str]]:
    """All that is wrong with which field of the form, without the lines of a recipe."""
    found: dict[str, list[str]] = {}
    for mistake in error.mistakes if isinstance(error, RecipeError) else ():
        key = mistake.lacks or mistake.key_path.rpartition(".")[2]
        name = _FIELD_OF.get(key, key)
        if name in RecipeForm.model_fields:
            found.setdefault(name, []).append(for_a_form(mistake.message))
    return found


def new_key() -> str:
    """For a form that is shown."""
    return secrets.token_hex(16)


def key_of(form_key: str, request: RunRequest) -> str:
    """For `Submissions.submit`: the same form with other content, as after the browser's Back, is another."""
    return f"{form_key}-{request.digest()}" if form_key else ""


#: Text that YAML takes as it stands, and as text.
_PLAIN: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*")
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n", ".", ".inf", ".nan"})
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_RANGE: Final = re.compile(
    r"(?P<range>-?\d+(\.\d+)?([eE][+-]?\d+)?-+\d+(\.\d+)?([eE][+-]?\d+)?)(?P<log>\s+log)?"
)


def unix_lines(text: str) -> str:
    """A text of a form: browsers send its lines as Windows writes them."""
    return text.replace("\r\n", "\n")


#: What somebody has typed.
Typed = Annotated[str, AfterValidator(unix_lines), StringConstraints(strip_whitespace=True)]
#: An experiment that has no name yet, and a recipe before anything is filled in.
_NAME: Final = "train"
_MAIN: Final = "main.py"
_EMPTY: Final = f"name: run\nexperiments:\n  {_NAME}:\n    command: python {_MAIN}\n"
#: Keys of a search that have a field.
_OF_SEARCH: Final = ("metric", "goal", "sampler", "pruner", "population", "generations")
#: Where fields of an experiment stand in a recipe.
_GROUPS: Final[dict[Path, dict[str, str]]] = {
    ("search",): {each: each for each in _OF_SEARCH},
    ("distributed",): {
        "strategy": "strategy",
        "workers": "workers",
        "latency_ms": "latency_ms",
        "servers": "parameter_servers",
    },
    ("distributed", "hardware", "ps"): {"server": "instance"},
    ("hardware",): {"instance": "instance", "region": "region", "spot": "spot"},
    ("batch",): {"batch": "global"},
}
#: What goes as a whole, and how many keys below it say which.
_WHOLE: Final = {"search": 1, "distributed": 1, "data": 2}


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
        pruner: that ends hopeless tasks. population, generations: of samplers that have them.
    """

    model_config = ConfigDict(frozen=True)

    name: Typed = ""
    code: Typed = ""
    digest: Typed = ""
    main: Typed = ""  # a form that is sent has the default where a field is empty
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
    pruner: Typed = ""
    population: Typed = ""
    generations: Typed = ""

    @classmethod
    def of(cls, text: str) -> RecipeForm | None:
        """What a recipe has of each field, in its own words; None if it cannot be read.

        What a field cannot say stays empty: it is in the text alone. Fields of an experiment are its first's.
        """
        try:
            return cls(**_fields(_plain(compose(text, "recipe"))))
        except RecipeError:
            return None

    def text(self) -> str:
        """The recipe. What is wrong in it is said as of any other."""
        return self.written("", RecipeForm())

    def written(self, text: str, was: RecipeForm) -> str:
        """A recipe in which the fields that have changed are written; all else stays byte for byte.

        Args:
            text: the recipe; empty for a new one, that has all fields.
            was: the fields before.

        Raises:
            UsageError: it cannot be read, or a field cannot be written into it.
        """
        if not text.strip():
            filled = self.model_copy(update={"main": self.main or _MAIN})
            return filled.written(_EMPTY, RecipeForm(main=_MAIN))
        recipe = RecipeText(text)
        experiments = recipe.values.get("experiments")
        at = ("experiments", next(iter(experiments), _NAME) if isinstance(experiments, dict) else _NAME)
        mine, before = self._values(at), was._values(at)
        if mine.get((*at, "samples")) != before.get((*at, "samples")):
            recipe = recipe.without((*at, "parameters", "samples"))
        for path, value in mine.items():
            if before.get(path) != value:
                recipe = recipe.put(path, value)
        for path in before.keys() - mine.keys() - {("name",), (*at, "command")}:
            recipe = recipe.without(_gone(path, mine))
        return recipe.text

    def _values(self, at: Path) -> dict[Path, str]:
        """Values of keys in YAML, of those that are filled in: ``at`` has those of an experiment."""
        policy = self.policy if self.policy in POLICIES else ""
        if policy and self.p:
            objective = _value({"policy": policy, "p": self.p})
        else:
            objective = policy or self.objective
            objective = objective and _scalar(objective)
        found: dict[Path, str] = {("objective",): objective}
        for key, value in (("name", self.name), ("code", self.code), ("provider", self.provider)):
            found[(key,)] = value and _scalar(value)
        for key, value in (("total", self.budget), ("per_hour", self.per_hour)):
            found["budget", key] = value and _scalar(f"${value.lstrip('$')}")
        found["budget", "deadline"] = self.deadline and _scalar(self.deadline)
        of_experiment: dict[Path, str] = {
            (key,): value and _scalar(value) for key, value in self._plain_keys()
        }
        setup = f"{self.setup}\n" if "\n" in self.setup else self.setup and _scalar(self.setup)
        of_experiment["setup",] = setup
        for name, value in self._parameters():
            of_experiment["parameters", name] = _parameter(value)
        search = {key: getattr(self, key) for key in _OF_SEARCH}
        if any(value for key, value in search.items() if key != "goal"):  # a goal is always filled in
            of_experiment |= {("search", key): value and _scalar(value) for key, value in search.items()}
        if self.data:
            kind = "url" if self.data == "url" else "volume"
            source = self.source
            if self.data == "built-in" and source:  # that set, also where a volume is called so
                source = BUILT_IN_PREFIX + source.removeprefix(BUILT_IN_PREFIX)
            of_experiment["data", self.data_name or "data", kind] = _scalar(source)
        of_experiment |= {("distributed", *key): value for key, value in self._distributed().items()}
        regions = types_in(self.region) if "," in self.region else self.region
        hardware: dict[str, Any] = {
            "instance": types_in(self.instance),
            "region": regions,
            "spot": "true" * bool(self.spot),
        }
        of_experiment |= {("hardware", key): value and _value(value) for key, value in hardware.items()}
        of_experiment["batch", "global"] = self.batch and _scalar(self.batch)
        found |= {(*at, *path): value for path, value in of_experiment.items()}
        return {path: value for path, value in found.items() if value}

    def _plain_keys(self) -> Iterator[tuple[str, str]]:
        names = [name for name, _ in self._parameters() if f"{{{{{name}}}}}" not in self.arguments]
        options = [part for name in names for part in (f"--{name}", f"{{{{{name}}}}}")]
        yield "command", self.main and " ".join(["python", self.main, *self.arguments.split(), *options])
        for key in ("samples", "framework", "steps", "epochs", "examples"):
            yield key, getattr(self, key)

    def _distributed(self) -> dict[Path, str]:
        """FC2's policies, and a type of servers, are for a training with parameter servers."""
        is_fc2 = self.policy in POLICIES and self.policy != "lookup"
        workers, asks = self.workers, bool(self.servers or self.server or is_fc2)
        if is_fc2 and not workers and self.most_workers.isdecimal():
            workers = f"1..{self.most_workers}"
        if not (self.strategy or workers or asks or self.latency_ms):
            return {}
        strategy = self.strategy or ("ps-async" if asks else "allreduce")
        values: dict[Path, Any] = {
            ("strategy",): strategy,
            ("latency_ms",): self.latency_ms,
            ("workers",): workers,
            ("parameter_servers",): self.servers,
        }
        if strategy != "allreduce":
            values["hardware", "ps", "instance"] = types_in(self.server)
        return {path: _value(value) for path, value in values.items() if value}

    def _parameters(self) -> Iterator[tuple[str, str]]:
        for line in self.parameters.splitlines():
            name, _, value = line.partition(":")
            if name.strip():
                yield name.strip(), value.strip()


def with_cluster(text: str, experiment: str, cluster: Mapping[str, Any]) -> str:
    """A recipe that takes one cluster of a quote; all else stays.

    Args:
        text: of the recipe.
        experiment: whose cluster.
        cluster: as ``quote --json`` has it: ``worker`` with ``instance`` and so on.

    Raises:
        UsageError: it has no such experiment.
    """
    found, at = RecipeText(text), ("experiments", experiment)
    try:
        block = found.values["experiments"][experiment]
    except (KeyError, TypeError):
        raise UsageError(f"the recipe has no experiment {experiment!r}", "Quote it again.") from None
    worker, server = cluster["worker"], cluster.get("parameter_server")
    values: dict[Path, Any] = {}
    if worker["usd_per_hour"]:  # machines of one's own are not chosen
        values["hardware", "instance"], values["hardware", "spot"] = worker["instance"], worker["spot"]
        if worker.get("region") and worker.get("provider") == found.values.get("provider"):
            values["hardware", "region"] = worker["region"]
    if "distributed" in block:
        values["distributed", "workers"] = worker["processes"]
        if server and server["usd_per_hour"]:
            servers = server["count"] // cluster.get("tasks_at_once", 1)
            values["distributed", "parameter_servers"] = servers
            for key in ("instance", "spot"):
                values["distributed", "hardware", "ps", key] = server[key]
        elif worker["usd_per_hour"]:  # they share the workers' machines
            found = found.without((*at, "distributed", "hardware", "ps"))
    for path, value in values.items():
        found = found.put((*at, *path), _scalar(_typed(value)))
    objective = found.values.get("objective")  # what a policy was to choose is chosen
    if (isinstance(objective, dict) and "policy" in objective) or objective in POLICIES:
        found = found.without(("objective",))
    return found.text


def scalar(value: Any) -> str:  # noqa: ANN401 - of a recipe
    """A value as a recipe has it."""
    return _scalar(_typed(value))


def without_triggers(text: str) -> str:
    r"""The recipe of a workflow as one that runs once; any other stays as it is.

    >>> without_triggers("name: a  # mine\non: webhook\nconcurrency: skip\nseed: 1\n")
    'name: a  # mine\nseed: 1\n'
    """
    found = RecipeText(text)
    return found.without(("on",)).without(("concurrency",)).text if "on" in found.values else text


def _gone(path: Path, mine: Mapping[Path, str]) -> Path:
    """What is taken away with a key: a search without its metric is none, nor data without a source."""
    for whole in (path[: path.index(key) + more] for key, more in _WHOLE.items() if key in path[:3]):
        if not any(each[: len(whole)] == whole for each in mine):
            return whole
    return path


def _fields(recipe: Any) -> dict[str, str]:  # noqa: ANN401 - it may be anything
    """What a recipe has of each field; empty is what no field can say."""

    def at(*path: str) -> Any:  # noqa: ANN401 - of a recipe
        found = recipe
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    experiments = at("experiments")
    one = next(iter(experiments), _NAME) if isinstance(experiments, dict) else _NAME
    values: dict[str, Any] = {key: at(key) for key in ("name", "code", "provider")}
    for key in ("setup", "samples", "framework", "steps", "epochs", "examples"):
        values[key] = at("experiments", one, key)
    for group, keys in _GROUPS.items():
        values |= {field: at("experiments", one, *group, key) for field, key in keys.items()}
    objective, found = at("objective"), at("experiments", one, "parameters")
    parameters = dict(found) if isinstance(found, dict) else {}
    inner = parameters.pop("samples", None)  # Hyper's figure 1 has it there
    values["samples"] = values["samples"] or inner
    policy = objective if isinstance(objective, dict) else {"policy": objective}
    if policy.get("policy") in POLICIES:
        values |= {"policy": policy["policy"], "p": policy.get("p")}
    else:
        values["objective"] = objective
    for field, key in (("budget", "total"), ("per_hour", "per_hour"), ("deadline", "deadline")):
        values[field] = _typed(at("budget", key)).lstrip("$")
    lines = []
    for name, value in parameters.items():
        if isinstance(value, dict):
            if value.get("sampling") == "uniform":  # as without it
                value = {key: value[key] for key in value if key != "sampling"}
            line = f"{value.get('range')} {'log' * ('sampling' in value)}"
        else:
            line = _typed(value)
        if _plain(compose(_parameter(line.strip()), "value")) in (value, [value]):
            lines.append(f"{name}: {line.strip()}")
    values["parameters"] = "\n".join(lines)
    values["spot"] = "on" if values["spot"] == "true" else ""
    data = at("experiments", one, "data")
    if isinstance(data, dict) and len(data) == 1:
        ((name, source),) = data.items()
        for kind in ("url", "volume"):
            if isinstance(source, dict) and isinstance(source.get(kind), str):
                values |= {"data": kind, "data_name": name, "source": source[kind]}
        if values.get("data") == "volume" and values["source"].startswith(BUILT_IN_PREFIX):
            values |= {"data": "built-in", "source": values["source"].removeprefix(BUILT_IN_PREFIX)}
    values |= _command(at("experiments", one, "command"), parameters)
    typed = {key: _typed(value) for key, value in values.items()}
    # A line that is filled in is one; a goal or a policy that is not there is the usual one.
    return {
        key: value
        for key, value in typed.items()
        if (value or key == "main") and ("\n" not in value or key in ("setup", "parameters"))
    }


def _command(command: object, parameters: Mapping[str, Any]) -> dict[str, str]:
    """A script and its arguments; none if the command is another one, or gives parameters in another way."""
    if isinstance(command, list) and len(command) == 1:
        (command,) = command
    words = command.split(" ") if isinstance(command, str) else []
    options = [part for name in parameters for part in (f"--{name}", f"{{{{{name}}}}}")]
    is_plain = len(words) > 1 and words[0] == "python" and all(words) and "\n" not in str(command)
    if not is_plain or any(f"{{{{{name}}}}}" not in str(command) for name in parameters):
        return {"main": "", "arguments": ""}
    rest = words[2:]
    for option, name in zip(options[::2], options[1::2], strict=True):
        if option in rest and rest[(at := rest.index(option)) + 1 : at + 2] == [name]:
            del rest[at : at + 2]
    return {"main": words[1], "arguments": " ".join(rest)}


def _plain(node: YamlNode) -> Any:  # noqa: ANN401 - of YAML
    """Mappings, lists and texts, numbers as they are written; None is what is not there."""
    if node.kind is Kind.MAPPING:
        return {key: _plain(each) for key, each in node.entries.items()}
    if node.kind is Kind.LIST:
        return [_plain(each) for each in node.items]
    return None if node.is_null else node.text


def _typed(value: Any) -> str:  # noqa: ANN401 - of YAML
    """As one would type it; empty is what cannot be typed in a line.

    >>> _typed(["0.1", "relu"]), _typed(True), _typed(None), _typed({"a": "1"})
    ('0.1, relu', 'true', '', '')
    """
    if isinstance(value, list):
        return ", ".join(map(_typed, value))
    if value is None or isinstance(value, dict):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


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
