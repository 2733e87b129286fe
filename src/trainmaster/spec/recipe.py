"""The recipe: what the user wants."""

from __future__ import annotations

import re
import shlex
from pathlib import Path as FilePath
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.spec.budget import Budget
from trainmaster.spec.data_source import EXPERIMENT_NAME, EXPERIMENT_NAME_RIGHT, DataSource
from trainmaster.spec.experiment import Experiment, read_data, read_env, read_secrets
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.objective import Objective, read_objective
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    Refused,
    integer,
    noun,
    pattern,
    read_noun,
    shorten,
    text,
)

_NAME = re.compile(EXPERIMENT_NAME)
_MAX_NAME: Final = 100
PROVIDER_NAME: Final = r"[a-z][a-z0-9_-]*"


def _experiments(node: YamlNode, path: Path, problems: Problems) -> dict[str, Experiment]:
    if node.kind is not Kind.MAPPING or not node.entries:
        right = "write a mapping of experiments, their names indented below this key"
        raise problems.refuse(node, path, f"{node.describe()}; {right}")
    found: dict[str, Experiment] = {}
    for name, child in node.entries.items():
        if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
            message = f"the name '{shorten(name)}'; {EXPERIMENT_NAME_RIGHT}, at most {_MAX_NAME} characters"
            problems.add(node.keys[name], (*path, name), message)
        with problems.goes_on():
            found[name] = read_noun(Experiment, child, (*path, name), problems)
    if len(found) < len(node.entries):
        raise Refused
    return found


class Recipe(Noun):
    """A recipe as read: complete, checked and frozen.

    Attributes:
        name: of the runs; the file's stem by default.
        code: directory, wheel or git URL@ref.
        main: the script that a wheel runs.
        directory: the recipe's folder; relative paths start here.
        provider: who rents the machines.
        budget: what may be spent; None is no cap.
        objective: what a better cluster is.
        seed: of all random draws.
        env: variables of all experiments.
        secrets: names of secret variables of all experiments.
        data: data of all experiments.
        experiments: by name, in the recipe's order; they include the recipe's data, env and secrets.
        source_text: the file as it was read, without overrides.
    """

    name: Annotated[str, Key("name", pattern(EXPERIMENT_NAME, EXPERIMENT_NAME_RIGHT))]
    code: Annotated[str, Key("code", text("write a directory, a wheel or a git URL@ref"))] = "."
    main: Annotated[str, Key("main", text("write the script that the wheel runs"))] = "main.py"
    directory: FilePath = FilePath()
    provider: Annotated[
        str, Key("provider", pattern(PROVIDER_NAME, "write a provider's name such as local"))
    ] = "local"
    budget: Annotated[Budget | None, Key("budget", noun(Budget))] = None
    objective: Annotated[Objective, Key("objective", read_objective)] = Objective()
    seed: Annotated[int, Key("seed", integer())] = 0
    env: Annotated[dict[str, str], Key("env", read_env)] = Field(default={})
    secrets: Annotated[tuple[str, ...], Key("secrets", read_secrets)] = ()
    data: Annotated[dict[str, DataSource], Key("data", read_data)] = Field(default={})
    experiments: Annotated[
        dict[str, Experiment],
        Key("experiments", _experiments, required="write a mapping of experiments, each with a `command`"),
    ]
    source_text: str = ""

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other, and finish the experiments with what the recipe gives to all."""
        from trainmaster.spec.workflow import check_workflow

        is_wheel = values.get("code", ".").endswith(".whl")
        if "main" in node.entries and not is_wheel:
            problems.add(node.keys["main"], ("main",), "`main` without a wheel as `code`; leave it out")
        for name, source in values.get("data", {}).items():
            if source.experiment is not None:
                message = "`from` for all experiments; put it under those that need it"
                problems.add(node.entries["data"].entries[name], ("data", name, "from"), message)
        check_workflow(node, problems, command_is_optional=is_wheel)
        shared_env = values.get("env", {})
        for name in values.get("secrets", ()):
            if name in shared_env:
                message = f"'{name}' is in `secrets` too; leave it out here"
                problems.add(node.entries["env"].keys[name], ("env", name), message)
        main = values.get("main", "main.py")
        values["experiments"] = {
            name: _complete(experiment, values, f"python {shlex.quote(main)}")
            for name, experiment in values.get("experiments", {}).items()
        }

    def order(self) -> list[str]:
        """Names of the experiments, each after those it depends on."""
        from graphlib import TopologicalSorter

        graph = {name: experiment.depends_on for name, experiment in self.experiments.items()}
        return list(TopologicalSorter(graph).static_order())

    def summary(self) -> dict[str, Any]:
        """What ``check --json`` shows."""
        return {
            "name": self.name,
            "provider": self.provider,
            "seed": self.seed,
            "objective": self.objective.name,
            "budget": None if self.budget is None else self.budget.model_dump(mode="json"),
            "order": self.order(),
            "experiments": {name: experiment.summary() for name, experiment in self.experiments.items()},
        }


def _complete(experiment: Experiment, shared: dict[str, Any], command: str) -> Experiment:
    env = {**shared.get("env", {}), **experiment.env}
    secrets = tuple(dict.fromkeys([*shared.get("secrets", ()), *experiment.secrets]))
    # Nearer wins: an experiment's variable hides a secret of the recipe of the same name, and the other way.
    secrets = tuple(name for name in secrets if name in experiment.secrets or name not in experiment.env)
    return experiment.model_copy(
        update={
            "command": experiment.command or command,
            "data": {**shared.get("data", {}), **experiment.data},
            "env": {name: value for name, value in env.items() if name not in secrets},
            "secrets": secrets,
        }
    )
