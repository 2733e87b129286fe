"""A node of the workflow: one command, many tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.dataclass import dataclass
from trainmaster.spec import template
from trainmaster.spec.data_source import EXPERIMENT_NAME, EXPERIMENT_NAME_RIGHT, DataSource
from trainmaster.spec.distributed import Distributed, Strategy
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.experiment_checks import check_experiment, lift_samples, read_framework
from trainmaster.spec.frameworks import LAUNCHERS
from trainmaster.spec.gate import Requirement
from trainmaster.spec.hardware import Hardware
from trainmaster.spec.model_reference import PROMOTION, PROMOTION_RIGHT
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.parameter import Parameter, ParameterValue, format_value, read_parameter
from trainmaster.spec.places import read_providers
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    boolean,
    choice,
    duration,
    integer,
    list_of,
    mapping_of,
    noun,
    pattern,
    read_file_names,
    shell_script,
    takes,
    verbatim,
)
from trainmaster.spec.roles import Roles
from trainmaster.spec.search import Search
from trainmaster.spec.sections import Checkpoint, Metrics, ProfilePlan, RunReference
from trainmaster.spec.serve import Serve, check_serve, lift_command
from trainmaster.spec.task_space import MAX_TASKS, TaskSpace
from trainmaster.spec.units import counted
from trainmaster.spec.until import MetricTarget, Until, read_until


class Batch(Noun):
    """Examples per step, of all workers together or of each; exactly one is given.

    Attributes:
        total: of all workers (``global`` in the recipe).
        per_worker: of each worker.
    """

    total: Annotated[int | None, Key("global", integer(1))] = None
    per_worker: Annotated[int | None, Key("per_worker", integer(1))] = None
    one_of = ("global", "per_worker")

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Refuse what is no mapping, with an example of one."""
        if node.kind is not Kind.MAPPING:
            raise problems.refuse(node, path, f"{node.describe()}; write {{global: N}} or {{per_worker: N}}")
        return node

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        given = [name for name in ("global", "per_worker") if name in node.entries]
        if len(given) != 1:
            found = "both of `global` and `per_worker`" if given else "no size"
            problems.add(node, path, f"{found}; write {{global: N}} or {{per_worker: N}}")

    def sizes(self, workers: int) -> tuple[int, int]:
        """Examples per step of all workers and of each.

        Raises:
            ValueError: the global batch cannot be shared out evenly. Rounding would change what is trained.
        """
        if self.per_worker is not None:
            return self.per_worker * workers, self.per_worker
        total = self.total or 0
        if total % workers:
            raise ValueError(f"a global batch of {total} cannot be shared evenly by {workers} workers")
        return total, total // workers


@dataclass(frozen=True, slots=True)
class Role:
    """Members of a gang that do the same.

    Attributes:
        name: ``chief``, ``worker`` or ``ps``.
        count: how many members; their indices are 0..count-1.
        hardware: what each of their nodes needs.
        essential: the gang has succeeded when every essential member has exited 0.
    """

    name: str
    count: int
    hardware: Hardware
    essential: bool = True


#: Stands for the port of a replica until the script is a script of bash.
_PORT: Final = "trainmaster-port-6b1f0d"
_CHOSEN: Final = "${TRAINMASTER_PORT}"
_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_IMAGE: Final = r"/?[A-Za-z0-9][A-Za-z0-9._:/@+-]*"
_IMAGE_RIGHT: Final = "write an image's name such as python:3.12-slim, or the path of a file from / on"
_VARIABLE_RIGHT: Final = "write a name of letters, digits and '_' that does not begin with a digit"


def _env_value(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read a value; other tools take one that is empty from the caller's shell."""
    if node.is_null and not node.via:
        message = f"no value; to take it from your own environment write `secrets: [{path[-1]}]`"
        raise problems.refuse(node, path, f"{message} ('' is an empty text)")
    return verbatim(node, path, problems)


takes(_env_value, same=verbatim)
read_env = mapping_of(_env_value, "write a mapping of variables", name=_VARIABLE, what=_VARIABLE_RIGHT)
_ALIASES = list_of(
    choice("slurm", "skypilot", "dstack"), "write slurm, skypilot or dstack, or a list of these", single=True
)
read_secrets = list_of(pattern(_VARIABLE, _VARIABLE_RIGHT), "write a list of names of variables")
read_data = mapping_of(
    noun(DataSource), "write NAME: {volume: V} or the like", name=_VARIABLE, what=_VARIABLE_RIGHT
)
_AFTER = list_of(pattern(EXPERIMENT_NAME, EXPERIMENT_NAME_RIGHT), "write a list of experiments", single=True)
_PARAMETERS = mapping_of(
    read_parameter, "write a mapping of parameters", name=_VARIABLE, what=_VARIABLE_RIGHT
)


class OwnMachineKeys(Noun):
    """What an experiment says of its machines itself, before they are planned for one of several places."""

    hardware: Hardware
    distributed: Distributed | None = None
    workers: int | None = None


class Experiment(Noun):
    """What to run, how often, with what and on what.

    Attributes:
        name: its key under ``experiments``.
        after: experiments to wait for, as written; see `depends_on`.
        workers: most nodes that its tasks spread over (local: most tasks at a time); None is all there are.
        distributed: how its processes work together; None is a single process.
        framework: as written; see `launcher`.
        container: image to run in; ``auto`` becomes that of its framework when the recipe is read.
        chooses_image: it said ``auto``.
        shares: nodes in each place that its tasks spread over, once that is chosen; empty where it is in one.
        picks: types of machines in each of these, where quotes have chosen them; empty for own hosts.
        hardware: what each node must have.
        provider: places that its machines come from; empty: the recipe's. Of several one is chosen for each
            gang.
        batch: examples per step.
        steps: steps to train.
        epochs: passes over the data.
        examples: size of the data.
        until: what ends the training early, such as ``accuracy >= 0.97``; see `ends_at`.
        target: the same, foretold from its curve.
        parameters: what the command's ``{{name}}`` can be.
        samples: how many tasks to draw; None for the whole product.
        search: what chooses parameters, and by which metric.
        data: by name, the recipe's own included.
        env: variables, the recipe's own included.
        secrets: names of secret variables, the recipe's own included.
        env_file: files of variables; they are in `env` by now.
        aliases: tools under whose names its members find what they are told, too, such as ``slurm``.
        setup: bash script that prepares a node.
        roles: Ansible roles that make its machines ready.
        command: bash script of a task, a template.
        checkpoint: how often checkpoints are taken; None where the recipe says nothing.
        metrics: how metrics are read from the output; None tries common patterns.
        retries: further attempts after a failure of the user's code.
        timeout_s: seconds that an attempt may take; None is no limit.
        silence_s: an attempt that shows no sign of work for so many seconds is stopped; None: that is told.
        grace_s: seconds between SIGTERM and SIGKILL.
        profile: how it is measured for a quote.
        require: what its best model must reach for others to go on from it.
        promote: the alias that means its best model when it has succeeded, such as ``digits@production``.
        approval: ``required``: it begins when a person has approved that; None: by itself.
        serve: its tasks are replicas of a service, and do not end.
        adapt: a slow machine is replaced, and the size of a gang changed, if that gains more than it costs.
    """

    name: str
    after: Annotated[tuple[str, ...], Key("after", _AFTER)] = ()
    workers: Annotated[int | None, Key("workers", integer(1))] = None
    distributed: Annotated[Distributed | None, Key("distributed", noun(Distributed))] = None
    framework: Annotated[str | None, Key("framework", read_framework)] = None
    container: Annotated[str | None, Key("container", pattern(_IMAGE, _IMAGE_RIGHT))] = None
    hardware: Annotated[Hardware, Key("hardware", noun(Hardware))] = Hardware()
    provider: Annotated[tuple[str, ...], Key("provider", read_providers)] = ()
    batch: Annotated[Batch | None, Key("batch", noun(Batch))] = None
    steps: Annotated[int | None, Key("steps", integer(1))] = None
    epochs: Annotated[int | None, Key("epochs", integer(1))] = None
    examples: Annotated[int | None, Key("examples", integer(1))] = None
    until: Annotated[str | None, Key("until", read_until)] = None
    target: Annotated[MetricTarget | None, Key("target", noun(MetricTarget))] = None
    parameters: Annotated[dict[str, Parameter], Key("parameters", _PARAMETERS)] = Field(default={})
    samples: Annotated[int | None, Key("samples", integer(1, MAX_TASKS))] = None
    search: Annotated[Search | None, Key("search", noun(Search))] = None
    data: Annotated[dict[str, DataSource], Key("data", read_data)] = Field(default={})
    env: Annotated[dict[str, str], Key("env", read_env)] = Field(default={})
    secrets: Annotated[tuple[str, ...], Key("secrets", read_secrets)] = ()
    env_file: Annotated[tuple[str, ...], Key("env_file", read_file_names)] = ()
    aliases: Annotated[tuple[str, ...], Key("aliases", _ALIASES)] = ()
    setup: Annotated[str | None, Key("setup", shell_script)] = None
    roles: Annotated[Roles | None, Key("roles", noun(Roles))] = None
    command: Annotated[str, Key("command", shell_script)] = ""
    checkpoint: Annotated[Checkpoint | None, Key("checkpoint", noun(Checkpoint))] = None
    metrics: Annotated[Metrics | None, Key("metrics", noun(Metrics))] = None
    retries: Annotated[int, Key("retries", integer(0, 1_000_000))] = 0
    timeout_s: Annotated[float | None, Key("timeout", duration())] = None
    silence_s: Annotated[float | None, Key("silence", duration())] = None
    grace_s: Annotated[float, Key("grace", duration(may_be_zero=True))] = 20.0
    profile: Annotated[ProfilePlan | None, Key("profile", noun(ProfilePlan))] = None
    require: Annotated[Requirement | None, Key("require", noun(Requirement))] = None
    promote: Annotated[str | None, Key("promote", pattern(PROMOTION, PROMOTION_RIGHT))] = None
    approval: Annotated[str | None, Key("approval", choice("required"))] = None
    serve: Annotated[Serve | None, Key("serve", noun(Serve))] = None
    adapt: Annotated[bool, Key("adapt", boolean)] = False
    chooses_image: bool = False
    shares: dict[str, int] = Field(default={})
    picks: dict[str, str] = Field(default={})

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Move ``samples`` out of ``parameters`` (the other reading of Hyper's Figure 1), and ``command``."""
        if node.kind is not Kind.MAPPING or not node.entries:
            right = "write a mapping with at least the key `command`, indented below the name"
            raise problems.refuse(node, path, f"{node.describe()}; {right}")
        return lift_command(lift_samples(node, path, problems), path, problems)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        values["name"] = path[-1]
        check_serve(values, node, path, problems)
        check_experiment(values, node, path, problems)

    @property
    def beginning(self) -> RunReference | None:
        """The checkpoint of another run that its tasks begin with."""
        return None if self.checkpoint is None else self.checkpoint.beginning

    @property
    def starts_from(self) -> bool:
        """Whether it names registered models, or a checkpoint or tasks of another run."""
        names_run = self.beginning is not None or (
            self.search is not None and self.search.goes_on is not None
        )
        return names_run or any(each.model for each in self.data.values())

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Experiments that must have succeeded: ``after``, and those whose models are data."""
        sources = (source.experiment for source in self.data.values())
        return tuple(dict.fromkeys([*self.after, *(name for name in sources if name)]))

    @property
    def launcher(self) -> str:
        """Name of the launcher: the framework's if one is given, else the strategy's.

        A single process with a framework has that framework's launcher too: the variables of a world of
        one do no harm, and the same script runs alone and in a gang. What is no framework that we know is
        taken for a launcher's name (launchers can be plugged in).
        """
        if self.framework is not None:
            return LAUNCHERS.get(self.framework.lower(), self.framework)
        if self.distributed is None:
            return "plain"
        return "tensorflow" if self.distributed.strategy.has_servers else "torchrun"

    @property
    def metrics_pattern(self) -> str | None:
        """How metrics are read from what it prints; None tries the common patterns."""
        return self.metrics.pattern if self.metrics else None

    @property
    def ends_at(self) -> Until | None:
        """What ends its training early; None if nothing does."""
        if self.target is not None:
            return self.target.until
        return Until.of(self.until) if self.until else None

    @property
    def until_caveat(self) -> str:
        """What ``until`` or ``target`` means for its time, in words; empty without."""
        ends_at = self.ends_at
        if ends_at is None:
            return ""
        if self.builtin_values().get("steps"):
            return f"{self.name} ends at {ends_at}, at the latest after its steps"
        return f"{self.name} ends at {ends_at}: its time is that of its tasks in earlier runs"

    def tasks(self, seed: int) -> TaskSpace:
        """All tasks, none of them stored; of a service those that there may be at once.

        Args:
            seed: the recipe's; the same seed gives the same tasks.
        """
        if self.serve is not None:
            return TaskSpace({}, self.serve.most_at_once, seed)
        search = self.search
        if search is None:
            return TaskSpace(self.parameters, self.samples, seed)
        later, first = search.chooses_later, search.earlier_count
        return TaskSpace(self.parameters, self.samples, seed, chosen_later=later, first=first)

    def side_by_side(self, seed: int) -> int:
        """How many of its tasks could run at the same time: the others begin from what these have left."""
        return self.generation or len(self.tasks(seed))

    @property
    def generation(self) -> int | None:
        """So many tasks begin when all before them are over; None: they wait for no others."""
        search = self.search
        return None if search is None or search.generations is None else search.population

    def first_tasks(self, seed: int) -> int:
        """How many tasks it has at first: more only if it is a service."""
        return len(self.tasks(seed)) if self.serve is None else self.serve.replicas.fewest

    def members(self, workers: int | None = None) -> tuple[Role, ...]:
        """The roles of a task's gang. One ``worker`` without ``distributed``.

        Args:
            workers: how many were chosen where the recipe leaves it open; its fewest if None.
        """
        if self.distributed is None:
            return (Role("worker", 1, self.hardware),)
        count = self._worker_count(workers)
        has_chief = (
            self.distributed.strategy is not Strategy.ALLREDUCE
            and self.launcher == "tensorflow"
            and self.distributed.chief is None
        )
        counts = {"chief": int(has_chief), "ps": self.distributed.parameter_servers, "worker": count}
        return tuple(
            Role(
                role, number, self._hardware_of(role), essential=role == ("chief" if has_chief else "worker")
            )
            for role, number in counts.items()
            if number
        )

    def builtin_values(self, workers: int | None = None) -> dict[str, int]:
        """Values of ``batch_per_worker``, ``batch_global``, ``steps`` and ``epochs``, those that are known.

        ``steps`` follows from epochs, examples and the batch where it is not given: epochs x the steps of
        one epoch, the last of which may be smaller.

        Args:
            workers: as for `members`.

        Raises:
            UsageError: the global batch cannot be shared evenly by so many workers.
        """
        values: dict[str, int] = {}
        if self.batch is not None:
            with fails_as(f"experiment {self.name}", "Choose another number of workers.", on=ValueError):
                total, each = self.batch.sizes(self._worker_count(workers))
            values |= {"batch_per_worker": each, "batch_global": total}
            if self.epochs and self.examples:
                values["steps"] = self.epochs * math.ceil(self.examples / total)
        if self.steps is not None:
            values["steps"] = self.steps
        if self.epochs is not None:
            values["epochs"] = self.epochs
        return values

    def script(self, values: Mapping[str, ParameterValue], workers: int | None = None) -> str:
        """The command with every ``{{name}}`` replaced by its shell-quoted value.

        Args:
            values: of every parameter that the command names.
            workers: as for `members`.

        Raises:
            UsageError: a value is missing, or contains a NUL byte.
        """
        texts = self._texts(values)
        if "{{" in self.command:
            texts |= {name: format_value(value) for name, value in self.builtin_values(workers).items()}
        if self.serve is not None:
            texts["port"] = _PORT if self.serve.port is None else str(self.serve.port)
        try:
            found = template.render(self.command, texts)
        except KeyError as error:
            raise UsageError(
                f"experiment {self.name}: the command needs {error}, which has no value"
            ) from None
        # It is chosen where the member starts, and is a number: bash need not keep it together.
        return found.replace(f"'{_PORT}'", _CHOSEN).replace(_PORT, _CHOSEN) if self.serve else found

    def environment(self, values: Mapping[str, ParameterValue], workers: int | None = None) -> dict[str, str]:
        """The variables that carry the values.

        ``TRAINMASTER_PARAM_<NAME>``, and where they are known ``TRAINMASTER_BATCH_PER_WORKER``,
        ``TRAINMASTER_BATCH_GLOBAL``, ``TRAINMASTER_STEPS`` and ``TRAINMASTER_EPOCHS``.

        Args:
            values: of the parameters.
            workers: as for `members`.
        """
        variables = {f"TRAINMASTER_PARAM_{name.upper()}": text for name, text in self._texts(values).items()}
        for name, value in self.builtin_values(workers).items():
            variables[f"TRAINMASTER_{name.upper()}"] = format_value(value)
        return variables

    def summary(self) -> dict[str, Any]:
        """What ``check --json`` shows of it."""
        # While a service changes its version there is one more, for a moment.
        count = len(self.tasks(0)) if self.serve is None else self.serve.replicas.most
        return {
            "after": list(self.depends_on),
            "tasks": count,
            "workers": self.workers,
            "hardware": self.hardware.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
            "distributed": None if self.distributed is None else self.distributed.summary(),
            "launcher": self.launcher,
            "container": self.container,
            "members": self._member_counts(),
            "parameters": {
                name: parameter.model_dump(mode="json", exclude_defaults=True, exclude={"texts"})
                for name, parameter in self.parameters.items()
            },
            "samples": self.samples,
            "search": None if self.search is None else self.search.model_dump(mode="json"),
            "data": {
                name: source.model_dump(mode="json", exclude_none=True) for name, source in self.data.items()
            },
            **({} if self.until is None else {"until": self.until}),
            **({} if self.target is None else {"target": self.target.model_dump(exclude_none=True)}),
            "retries": self.retries,
            "timeout_s": self.timeout_s,
            **({"adapt": True} if self.adapt else {}),
            **({} if self.serve is None else {"serve": self.serve.model_dump(mode="json")}),
        }

    def _member_counts(self) -> dict[str, int | str]:
        counts: dict[str, int | str] = {role.name: role.count for role in self.members()}
        if self.distributed is not None:
            counts["worker"] = self.distributed.workers
        return counts

    def _worker_count(self, workers: int | None) -> int:
        if self.distributed is None:
            return 1
        fewest, most = self.distributed.worker_bounds
        if workers is None:
            return fewest
        if workers < fewest or (most is not None and workers > most):
            raise UsageError(
                f"experiment {self.name}: {counted(workers, 'worker')}, but the recipe says "
                f"{self.distributed.workers}"
            )
        return workers

    def _hardware_of(self, role: str) -> Hardware:
        override = self.distributed.hardware.get(role) if self.distributed else None
        hardware = self.hardware  # what workers are is no wish for what servers are
        hardware = hardware.model_copy(update={"instance": ()}) if role == "ps" else hardware
        return hardware.overridden_by(override) if override else hardware

    def _texts(self, values: Mapping[str, ParameterValue]) -> dict[str, str]:
        texts = {}
        for name, value in values.items():
            parameter = self.parameters.get(name)
            texts[name] = format_value(value) if parameter is None else parameter.text(value)
            if "\0" in texts[name]:
                raise UsageError(f"experiment {self.name}: the value of {name} contains a NUL byte")
        return texts
