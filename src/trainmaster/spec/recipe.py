"""The recipe: what the user wants, and how it is read from a file or a dictionary."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.spec.data_source import EXPERIMENT_NAME, EXPERIMENT_NAME_RIGHT, DataSource
from trainmaster.spec.errors import RecipeError, TrainmasterError, UsageError
from trainmaster.spec.experiment import Experiment, OwnMachineKeys, read_data, read_env, read_secrets
from trainmaster.spec.frameworks import AUTO, ENGINES, image_of_framework, image_variable
from trainmaster.spec.node import (
    MAX_RECIPE_BYTES,
    Kind,
    YamlNode,
    below,
    changed,
    compose,
    plain_value,
    with_entry,
    written,
)
from trainmaster.spec.objective import Budget, Objective, read_objective
from trainmaster.spec.places import first_provider, places_of
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    ReportedMistake,
    boolean,
    choice,
    integer,
    noun,
    pattern,
    read_file_names,
    read_noun,
    shorten,
    takes,
    text,
    verbatim,
)
from trainmaster.spec.recipe_source import (
    IN_DIRECTORY,
    as_set,
    changed_tree,
    configuration_files,
    explain_lost_indentation,
    text_of,
    too_large,
)
from trainmaster.spec.sections import Code, RunReference
from trainmaster.spec.sinks import Sinks
from trainmaster.spec.topics import Subscription, read_notify
from trainmaster.spec.trigger import CONCURRENCY, Trigger, read_triggers

_NAME = re.compile(EXPERIMENT_NAME)
_MAX_NAME: Final = 100
#: By which the run of a JupyterLab on a rented machine is known.
NOTEBOOK_LABELS: Final = {"app": "jupyterlab"}


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
        raise ReportedMistake
    return found


def _labels(node: YamlNode, path: Path, problems: Problems) -> dict[str, str]:
    from trainmaster.spec.labels import read_labels  # few recipes have any

    return read_labels(node, path, problems)


takes(_experiments, values=noun(Experiment), names=f"^(?:{EXPERIMENT_NAME})$", fewest=1)
takes(_labels, values=verbatim, names="^[A-Za-z]([A-Za-z0-9_/-]*[A-Za-z0-9])?$")


def _engine(node: YamlNode, path: Path, problems: Problems) -> str:
    """One that is built in, or that an installed package brings."""
    known = (AUTO, *ENGINES.built_in)
    if node.kind is Kind.SCALAR and node.text not in known and node.text in ENGINES.plug_ins():
        return node.text
    return choice(*known)(node, path, problems)


takes(_engine, enum=[AUTO, *ENGINES.built_in])


class Recipe(Noun):
    """A recipe as read: complete, checked and frozen.

    Attributes:
        name: of the runs; the file's stem by default.
        code: directory, wheel or git URL@ref.
        include: patterns of what is sent of it although .gitignore leaves it out.
        main: the script that a wheel runs.
        directory: the recipe's folder; relative paths start here.
        provider: that rents the machines; of several the first, until one is chosen.
        places: all providers that it names in its order, if they are several; one of them is chosen.
        engine: what makes one cluster of machines: ``ray``, or ``ssh`` without anything else on them;
            ``auto`` goes by how many there are, see `engine_for`.
        budget: what may be spent; None is no cap.
        objective: what a better cluster is.
        priority: among runs that wait on a server: ``low``, ``normal`` or ``high``.
        seed: of all random draws.
        env: variables of all experiments.
        secrets: names of secret variables of all experiments.
        data: data of all experiments.
        notify: who is told what happens to a run.
        sinks: where what tasks report is sent, too.
        labels: what its runs are found by, and their cost is summed up by.
        on: what starts it again and again on a server, which keeps it: it is a workflow.
        bake: when it has succeeded, images are made of its machines; `trainmaster image build` writes it.
        concurrency: of a workflow: what a start does while a run of it is under way.
        experiments: by name, in the recipe's order; they include the recipe's data, env and secrets.
        include_files: other files whose keys it has, too; they are in it by now.
        env_file: files of variables; they are in `env` by now.
        source_text: the file as it was read, without overrides.
        included: names and texts of the files that it includes, without what looks like a secret.
        env_files: where values of its secrets may be.
        notes: what was said about it when it was read.
        configured: what it leaves open and is configured: texts ``path=value``, and the places that say so.
        overrides: what was changed of it, in order: texts ``path=value`` as for ``--set``.
        places_left: of several that were named, those that are asked when ``provider`` has no machines.
        places_given_up: where there were none, a line each.
        unplanned: what its experiments say of machines themselves, where one of several places was chosen.
        file: what messages call the file.
    """

    name: Annotated[str, Key("name", pattern(EXPERIMENT_NAME, EXPERIMENT_NAME_RIGHT))]
    code: Annotated[str, Key("code", noun(Code))] = "."
    include: tuple[str, ...] = ()
    main: Annotated[str, Key("main", text("write the script that the wheel runs"))] = "main.py"
    directory: FilePath = FilePath()
    provider: Annotated[str, Key("provider", first_provider)] = "local"
    places: tuple[str, ...] = ()
    engine: Annotated[str, Key("engine", _engine)] = AUTO
    budget: Annotated[Budget | None, Key("budget", noun(Budget))] = None
    objective: Annotated[Objective, Key("objective", read_objective)] = Objective()
    priority: Annotated[str, Key("priority", choice("low", "normal", "high"))] = "normal"
    seed: Annotated[int, Key("seed", integer())] = 0
    env: Annotated[dict[str, str], Key("env", read_env)] = Field(default={})
    secrets: Annotated[tuple[str, ...], Key("secrets", read_secrets)] = ()
    data: Annotated[dict[str, DataSource], Key("data", read_data)] = Field(default={})
    notify: Annotated[tuple[Subscription, ...], Key("notify", read_notify)] = ()
    sinks: Annotated[Sinks | None, Key("sinks", noun(Sinks))] = None
    labels: Annotated[dict[str, str], Key("labels", _labels)] = Field(default={})
    on: Annotated[tuple[Trigger, ...], Key("on", read_triggers)] = ()
    concurrency: Annotated[str, Key("concurrency", choice(*CONCURRENCY))] = "wait"
    bake: Annotated[bool, Key("bake", boolean)] = False
    include_files: Annotated[tuple[str, ...], Key("include", read_file_names)] = ()
    env_file: Annotated[tuple[str, ...], Key("env_file", read_file_names)] = ()
    experiments: Annotated[
        dict[str, Experiment],
        Key("experiments", _experiments, required="write a mapping of experiments, each with a `command`"),
    ]
    source_text: str = ""
    included: tuple[tuple[str, str], ...] = ()
    env_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    configured: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    places_left: tuple[str, ...] = ()
    places_given_up: tuple[str, ...] = ()
    unplanned: dict[str, OwnMachineKeys] = Field(default={})
    file: str = "recipe"

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other, and finish the experiments with what the recipe gives to all."""
        from trainmaster.spec.experiment_checks import check_workflow

        code = values.get("code", Code())  # one key, two fields
        values |= {"code": code.source, "include": code.include}
        is_wheel = code.source.endswith(".whl")
        if "main" in node.entries and not is_wheel:
            problems.add(node.keys["main"], ("main",), "`main` without a wheel as `code`; leave it out")
        if "concurrency" in node.entries and "on" not in node.entries:
            message = "`concurrency` without `on`; it is for workflows"
            problems.add(node.keys["concurrency"], ("concurrency",), message)
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
        own = [experiment.provider for experiment in values["experiments"].values()]
        if own and all(own):  # nothing of it is where the recipe itself would have it
            values["provider"] = own[0][0]

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        overrides: Mapping[str, object] | None = None,
        provider: str | None = None,
    ) -> Recipe:
        """Read and check a recipe.

        Args:
            path: the file, or a directory with a ``recipe.yaml``.
            overrides: keys to change, such as ``{"experiments.train.retries": 5}``; None takes one away.
            provider: replaces the recipe's ``provider``.

        Raises:
            RecipeError: with all mistakes that were found.
            UsageError: an override is wrong in itself.
        """
        return read_recipe(path, overrides=as_set(overrides or {}), provider=provider)

    @classmethod
    def from_text(
        cls,
        source: str,
        *,
        directory: str | os.PathLike[str] = ".",
        provider: str | None = None,
        defaults: Sequence[FilePath] = (),
    ) -> Recipe:
        """Check a recipe that is the text of a file. It includes nothing: others may have sent it.

        Args:
            source: YAML.
            directory: where ``code`` and other relative paths start.
            provider: replaces the recipe's ``provider``.
            defaults: files of configuration that say what it leaves open.

        Raises:
            RecipeError: with all mistakes that were found.
        """
        if len(source.encode()) > MAX_RECIPE_BYTES:
            raise too_large("recipe")
        folder = FilePath(directory).absolute()
        return _read_text(source, "recipe", "run", folder, (), provider, defaults, includes=False)

    @classmethod
    def from_dict(
        cls,
        content: Mapping[str, object],
        *,
        directory: str | os.PathLike[str] = ".",
        overrides: Mapping[str, object] | None = None,
        provider: str | None = None,
    ) -> Recipe:
        """Check a recipe that is a dictionary: the keys and values that its YAML would have.

        Args:
            content: of texts, numbers, paths, lists and dictionaries.
            directory: where ``code`` and other relative paths start.
            overrides: keys to change, as for `read`.
            provider: replaces the recipe's ``provider``.

        Raises:
            RecipeError: with all mistakes that were found; lines are those of `source_text`.
            UsageError: a value has no form in YAML, or an override is wrong in itself.
        """
        source = json.dumps(plain_value(content), indent=2, ensure_ascii=False) + "\n"  # JSON is YAML
        folder = FilePath(directory).absolute()
        files = configuration_files(folder, os.environ)
        return _read_text(source, "<recipe>", "run", folder, as_set(overrides or {}), provider, files)

    def as_yaml(self, *, code: str | None = None) -> str:
        """YAML that means this recipe wherever it is read: with its name, and with what was changed of it.

        Args:
            code: what to write as its ``code``; None leaves that as it is.
        """
        root, changes = self.tree(), []
        if "name" not in root.entries:
            changes.append(f"name={json.dumps(self.name)}")
        if code is not None and code != self.code:
            changes.append(f"code{'.dir' * bool(self.include)}={json.dumps(code)}")
        for change in changes:
            root = changed(root, change)
        is_other = changes or self.overrides or self.configured or self.included
        return written(root) if is_other else self.source_text

    def tree(self) -> YamlNode:
        """Its keys with their places: what the file says and includes, is configured, and was changed."""
        root = compose(self.source_text or "{}", self.file)
        if self.included:
            from trainmaster.spec.including import expanded

            root = expanded(root, self.file, self.directory, dict(self.included)).root
        for change, said_by in self.configured:
            root = changed(root, change, said_by)
        for change in self.overrides:
            root = changed(root, change)
        return root

    def refused(self, mistakes: Sequence[tuple[Path, TrainmasterError]]) -> RecipeError:
        """What was found wrong after it was read, with the places in its file.

        Args:
            mistakes: keys, and what is wrong there. What an experiment has from the recipe is found there.
        """
        root, problems = self.tree(), Problems()
        for path, error in mistakes:
            hint = f"; {error.hint[:1].lower()}{error.hint[1:].rstrip('.')}" if error.hint else ""
            shared = path[2:]
            if shared and below(root, path) is None and (node := below(root, shared)):
                problems.add(node, shared, f"{error.args[0]}{hint}")
                continue
            nodes = (below(root, path[:known]) for known in range(len(path), -1, -1))
            problems.add(next(node for node in nodes if node), path, f"{error.args[0]}{hint}")
        return RecipeError(self.file, problems.in_order())

    def written(self, path: Path) -> str:
        """The value of a key as it was written there, or for all experiments; empty if there is none."""
        root = self.tree()
        node = below(root, path) or below(root, path[2:])
        return "" if node is None else node.text

    @property
    def is_notebook(self) -> bool:
        """Whether it is of a JupyterLab: it ends when whoever works in it does, and shows no steps."""
        return dict(self.labels).items() >= NOTEBOOK_LABELS.items()

    @property
    def beginnings(self) -> list[RunReference]:
        """Checkpoints of earlier runs that its experiments begin with."""
        return [each.beginning for each in self.experiments.values() if each.beginning is not None]

    @property
    def earlier_runs(self) -> set[str]:
        """As it has them: those whose checkpoints or searches it goes on with."""
        searches = [each.search for each in self.experiments.values()]
        earlier = [each.earlier for each in searches if each is not None]
        return {each.run for each in (*self.beginnings, *earlier) if each is not None}

    @property
    def starts_from(self) -> bool:
        """Whether one of its experiments begins with a model, a checkpoint or a search of others."""
        return any(each.starts_from for each in self.experiments.values())

    @property
    def secret_files(self) -> tuple[FilePath, ...]:
        """Files with values of secrets: they are no part of the code."""
        return tuple(map(FilePath, self.env_files))

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
    # What is the same for all is there once, however many experiments and variables there are.
    env, data = shared.get("env", {}), shared.get("data", {})
    env = {**env, **experiment.env} if experiment.env else env
    secrets = tuple(dict.fromkeys([*shared.get("secrets", ()), *experiment.secrets]))
    # Nearer wins: an experiment's variable hides a secret of the recipe of the same name, and the other way.
    own = set(experiment.secrets)
    secrets = tuple(name for name in secrets if name in own or name not in experiment.env)
    hidden = env.keys() & set(secrets)
    return experiment.model_copy(
        update={
            "command": experiment.command or command,
            "data": {**data, **experiment.data} if experiment.data else data,
            "env": {name: env[name] for name in env if name not in hidden} if hidden else env,
            "secrets": secrets,
        }
    )


def read_recipe(
    path: str | os.PathLike[str], *, overrides: Sequence[str] = (), provider: str | None = None
) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the file, or a directory with a ``recipe.yaml``.
        overrides: texts ``path=value`` as for ``--set``, such as ``experiments.train.retries=5``. The
            value is YAML; ``null`` takes the key away.
        provider: replaces the recipe's ``provider``.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: an override is wrong in itself.
    """
    file = FilePath(path)
    if file.is_dir() and (file / IN_DIRECTORY).is_file():
        file = file / IN_DIRECTORY
    shown = os.fspath(file)
    source, folder = text_of(file, shown), file.absolute().parent
    files = configuration_files(folder, os.environ)
    return _read_text(source, shown, file.stem, folder, overrides, provider, files)


def _read_text(
    source: str,
    shown: str,
    stem: str,
    directory: FilePath,
    overrides: Sequence[str],
    provider: str | None,
    defaults: Sequence[FilePath] = (),
    *,
    includes: bool = True,
) -> Recipe:
    root, noted = changed_tree(source, shown, directory, overrides, provider, defaults, includes=includes)
    problems = Problems()
    explain_lost_indentation(root, problems)
    try:
        recipe = _read(root, problems, stem)
        noted["places"] = places_of(root)
    except ReportedMistake:
        raise RecipeError(shown, problems.in_order()) from None
    noted |= {"directory": directory, "file": shown}
    return _with_images(recipe.model_copy(update=noted), os.environ)


def _with_images(recipe: Recipe, environ: Mapping[str, str]) -> Recipe:
    """With the image of its framework for each experiment that leaves the choice to us.

    It becomes an override: a run that goes on later, or elsewhere, goes on in the same image.

    Raises:
        RecipeError: there is none for a framework.
    """
    found, mistakes = {}, []
    for name, experiment in recipe.experiments.items():
        if experiment.container != AUTO:
            continue
        image = image_of_framework(experiment.framework, environ, gpus=bool(experiment.hardware.gpu_count))
        if image:
            found[name] = experiment.model_copy(update={"container": image, "chooses_image": True})
            continue
        framework = experiment.framework
        why = f"no image is known for {framework}" if framework else "there is no `framework` to choose it by"
        variable = f", or set {image_variable(framework)}" if framework else ""
        error = UsageError(f"{AUTO}: {why}", f"Write an image's name{variable}.")
        mistakes.append((("experiments", name, "container"), error))
    if mistakes:
        raise recipe.refused(mistakes)
    if not found:
        return recipe
    chosen = tuple(f"experiments.{name}.container={each.container}" for name, each in found.items())
    return recipe.model_copy(
        update={
            "experiments": {**recipe.experiments, **found},
            "overrides": (*recipe.overrides, *chosen),
        }
    )


def _read(root: YamlNode, problems: Problems, stem: str) -> Recipe:
    if "name" not in root.entries:
        # A file may be called anything, a run becomes a directory.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100] or "recipe"
        root = with_entry(root, "name", YamlNode(Kind.SCALAR, root.line, root.column, text=name))
    if problems.mistakes:
        raise ReportedMistake
    return read_noun(Recipe, root, (), problems)
