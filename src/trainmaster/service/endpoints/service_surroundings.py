"""What the services of a run need: names, models, rows, and ways to their replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from trainmaster.control.loop.health import HealthChecks
from trainmaster.control.loop.services import Load, ServedModel, Services, services_from_rows
from trainmaster.control.task.gangs import member_names
from trainmaster.db import endpoint_rows as rows
from trainmaster.db.endpoint_changes import NewEndpoint
from trainmaster.db.queries import RunFilter
from trainmaster.service.endpoints.serving_recipe import must_be_servable
from trainmaster.service.models.model_names import find_model
from trainmaster.service.models.registry import Registry
from trainmaster.service.runs.run_names import OWN_AT_HOME, resolve_run
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError
from trainmaster.spec.serve import BUILT_IN_COMMAND, Serve, service_name

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_executor import ClusterExecutor
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe


def new_endpoints(opened: OpenHome, recipe: Recipe) -> list[NewEndpoint]:
    """The services of a recipe that is about to be accepted.

    Args:
        opened: for the team whose models they serve.
        recipe: as read.

    Raises:
        UsageError: naming the key: two have one name, or there is no such model.
    """
    serves = _serves(recipe)
    promoted = {each.promote for each in recipe.experiments.values()}
    found: list[NewEndpoint] = []
    for experiment, serve in serves.items():
        name = serve.name or service_name(recipe.name, experiment if len(serves) > 1 else None)
        if any(each.name == name for each in found):
            raise UsageError(
                f"experiments.{experiment}.serve.name: two services are called {name}", "Name one of them."
            )
        found.append(NewEndpoint(experiment, name, serve.model))
        if serve.model is not None and serve.model not in promoted:
            try:
                served = served_model(opened, serve.model)
                if recipe.experiments[experiment].command.startswith(BUILT_IN_COMMAND):
                    _must_be_served(recipe, served.uri)
            except (NotFoundError, UsageError) as error:
                where = f"experiments.{experiment}.serve.model"
                raise UsageError(f"{where}: {error.args[0]}", error.hint) from None
    return found


def served_model(opened: OpenHome, model: str) -> ServedModel:
    """What a service's model means now.

    Args:
        opened: for the team whose it is.
        model: as in the recipe.

    Raises:
        NotFoundError: there is no such model.
        UsageError: there are several.
    """
    if "/" not in model:
        found = Registry(opened, opened.team, "").version(model)
        return ServedModel(f"{found['name']}@{found['version']}", found["uri"])
    own = RunFilter(teams=(opened.team,))  # what others' runs are called is not told
    sent_by = OWN_AT_HOME if opened.team is None else ()  # in a team a recipe's `latest` would be anybody's
    run = resolve_run(opened.database, model.partition("/")[0], own, sent_by)
    return ServedModel(model, find_model(opened.database, model, run))


def _must_be_served(recipe: Recipe, uri: str) -> None:
    """Refuse a model that the built-in server does not know. Code that is not here may have a script."""
    from trainmaster.artifacts import read_manifest

    code = recipe.directory / recipe.code
    try:
        manifest = read_manifest(uri) if code.is_dir() else None
    except PublishError:  # whether it can be read is for others to say
        return
    if manifest is not None:
        must_be_servable([entry.path for entry in manifest.files], code)


def services_of(opened: OpenHome, run: str, recipe: Recipe, nodes: ClusterExecutor | None) -> Services:
    """The services of a run as recorded.

    Args:
        opened: for the team of the run.
        run: its id.
        recipe: of the run.
        nodes: where members are; None where they are on this machine.
    """
    serves = _serves(recipe)
    if nodes is not None:
        nodes.look_after({name: recipe.experiments[name].grace_s for name in serves})
    endpoints = rows.of_run(opened.database, run)
    ids = [row["id"] for row in endpoints]
    members = {name: _first_member(recipe, name) for name in serves}
    states = services_from_rows(list(serves), endpoints, rows.unfinished(opened.database, ids))
    surroundings = _Surroundings(opened, {row["experiment"]: row["id"] for row in endpoints}, serves, nodes)
    for name, state in states.items():
        if serves[name].scale is not None and state.replicas:
            surroundings.need(name, len(state.replicas))
    return Services(run, serves, members, states, surroundings, HealthChecks(steady_s))


class _Surroundings:
    """See `ServiceSurroundings`."""

    def __init__(
        self, opened: OpenHome, ids: dict[str, str], serves: dict[str, Serve], nodes: ClusterExecutor | None
    ) -> None:
        self._opened, self._ids, self._serves, self._nodes = opened, ids, serves, nodes

    def load(self, experiment: str) -> Load:
        """What proxies tell."""
        database = self._opened.database
        now, endpoint = database.clock_s(), self._ids[experiment]
        in_flight = {row["task"]: row["in_flight"] for row in rows.replicas(database, [endpoint], now)}
        asked_at = rows.asked_at(database, endpoint)
        return Load(in_flight, None if asked_at is None else max(now - asked_at, 0.0))

    def model(self, experiment: str) -> ServedModel | str:
        """What its model means now, or why that is not known."""
        model = self._serves[experiment].model
        assert model is not None
        try:
            return served_model(self._opened, model)
        except (NotFoundError, UsageError) as error:
            return str(error.args[0])

    def node(self, attempt: str, member: str) -> str | None:
        """The machine of a member."""
        if self._nodes is None:
            return None
        return next((node.id for name, node in self._nodes.nodes_of(attempt) if name == member), None)

    def need(self, experiment: str, replicas: int) -> None:
        """There may be machines for no more, and one for a change of its model; without replicas for none."""
        serve = self._serves[experiment]
        if self._nodes is not None:
            most = replicas + serve.follows_alias if replicas else 0
            self._nodes.need(experiment, most / serve.most_at_once)

    def stops_in_s(self, attempt: str) -> float | None:
        """After how long it is told to end as its machine is taken back."""
        return None if self._nodes is None else self._nodes.stops_in_s(attempt)

    def reach(self, attempt: str, member: str, port: int) -> AbstractContextManager[tuple[str, int]]:
        """A way to its port."""
        return _here(port) if self._nodes is None else _there(self._nodes, attempt, member, port)


@contextmanager
def _here(port: int) -> Iterator[tuple[str, int]]:
    yield "127.0.0.1", port


@contextmanager
def _there(nodes: ClusterExecutor, attempt: str, member: str, port: int) -> Iterator[tuple[str, int]]:
    node = next((node for name, node in nodes.nodes_of(attempt) if name == member), None)
    if node is None:
        raise NotFoundError("its machine is not known", "Its run finds it.")
    with node.connection() as connection, connection.forward("localhost", port) as local_port:
        yield "127.0.0.1", local_port


def _serves(recipe: Recipe) -> dict[str, Serve]:
    return {name: each.serve for name, each in recipe.experiments.items() if each.serve is not None}


def _first_member(recipe: Recipe, experiment: str) -> str:
    role, index = member_names(recipe.experiments[experiment])[0]
    return f"{role}-{index}"
