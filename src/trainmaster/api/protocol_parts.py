"""`AppsProtocol`, `RegistryProtocol`, `StorageProtocol` and so on: what users ask beside runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trainmaster.spec.model_reference import ANY_VERSION


class AppsProtocol(Protocol):
    """TensorBoard, notebooks, and ports of members; answers are objects of ``trainmaster apps --json``.

    Raises:
        NotFoundError: (every method) there is no such run or app.
    """

    def tensorboard(self, runs: Sequence[str]) -> dict[str, Any]:
        """Open a TensorBoard of runs; it answers when its ``state`` is RUNNING.

        Raises:
            UsageError: there are too many, or files of a run are not there.
            MissingPartError: TensorBoard is not installed.
        """

    def notebook(self, run: str | None) -> dict[str, Any]:
        """Open a JupyterLab with what a run has, for the caller alone.

        Args:
            run: its id; None for an empty one: of the working directory, or on a server of one there.

        Raises:
            UsageError: there are too many, or files of the run are not there.
            ForbiddenError: the server's machine is not for that.
            MissingPartError: JupyterLab is not installed.
        """

    def port(self, run: str, member: str | None, port: int) -> dict[str, Any]:
        """Lead browsers to a port of a member of a run that goes on.

        Args:
            run: its id.
            member: such as ``worker-1``; None for the first one there is.
            port: at which it answers browsers.

        Raises:
            NotFoundError: there is no such member.
            UsageError: the run is over, or there are too many apps.
        """

    def listed(self) -> list[dict[str, Any]]:
        """The newest, also those that are over."""

    def show(self, app: str) -> dict[str, Any]:
        """One of them."""

    def enter(self, app: str) -> str:
        """A URL that lets one browser in, once. Without a server, it is good while this process lives.

        Raises:
            UsageError: it does not answer yet, or is over.
        """

    def end(self, app: str) -> None:
        """Ask for its end."""

    def leave(self, app: str) -> None:
        """This process, which has opened it, leads to it no more.

        Without a server it ends with the last process that does so, if one of them was the first to open it.
        On a server it goes on.
        """


class ServicesProtocol(Protocol):
    """Services of models.

    Raises:
        NotFoundError: (every method with a name) there is none of that name.
    """

    def listed(self) -> list[dict[str, Any]]:
        """Services of runs, those that are not over first: objects of ``trainmaster services --json``."""

    def show(self, name: str) -> dict[str, Any]:
        """One of them."""

    def url(self, name: str, port: int = 0) -> str:
        """Where it is asked; at home as long as this process lives.

        Args:
            name: of the service.
            port: of this machine, at home; 0 for any that is free.

        Raises:
            UsageError: the port is taken.
        """

    def listen(self, port: int) -> None:
        """At home: take requests to services in this process, before there is one.

        Args:
            port: of this machine; 0 for any that is free.

        Raises:
            MissingPartError: what reads requests is not installed.
            UsageError: the port is taken.
        """


class ImagesProtocol(Protocol):
    """Images that were made of machines; answers are objects of ``trainmaster image ls --json``.

    Raises:
        UsageError: (every method) that provider makes no images, or cannot be used.
        ProviderError: (every method) it cannot be reached.
    """

    def listed(self, provider: str | None = None) -> list[dict[str, Any]]:
        """Those of a provider; of all that can be asked, if none is named."""

    def remove(self, image: str, provider: str | None = None) -> list[dict[str, Any]]:
        """Remove one; what it was, nothing if it is gone already."""


class RegistryProtocol(Protocol):
    """Registered models; answers are what ``--json`` prints, see `service.models.registry.Registry`.

    A version is named ``NAME@3``, ``NAME@ALIAS``, or ``NAME`` for the newest.

    Raises:
        NotFoundError: (every method) there is no such model, alias or version.
        UsageError: (every method) no name can be so.
    """

    def models(self) -> list[dict[str, Any]]:
        """All by name, each with its aliases."""

    def show(self, name: str) -> dict[str, Any]:
        """One with its versions, aliases, and who moved them."""

    def version(self, text: str) -> dict[str, Any]:
        """A version."""

    def made_of(self, text: str) -> dict[str, Any]:
        """A version with its ``lineage``."""

    def register(
        self, model: str, name: str, alias: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Make a model of a run (``RUN/EXPERIMENT/TASK``) a version; that, and whether it is ``new``."""

    def promote(self, text: str, alias: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        """Have an alias mean a version; the version, and whether the alias ``moved``.

        Raises:
            AliasMovedError: it does not mean the version that was ``expected`` (None: none).
        """

    def rollback(self, text: str, expected: int | None = ANY_VERSION) -> dict[str, Any]:
        """Have ``NAME@ALIAS`` mean what it meant before; the version, as `promote`."""

    def remove_alias(self, text: str) -> None:
        """Take ``NAME@ALIAS`` away."""

    def remove(self, text: str) -> dict[str, Any]:
        """Take ``NAME@3`` out of the registry; the version that there was.

        Raises:
            ModelInUseError: an alias means it, or a run that is not over starts from it.
        """

    def describe(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Change what is said of a model; None leaves it."""

    def diff(self, a: str, b: str) -> dict[str, Any]:
        """In what two models differ."""


class StorageProtocol(Protocol):
    """What takes room, and how it goes; answers are what ``--json`` prints, see `service.storage`."""

    def remove_runs(
        self,
        runs: Sequence[str] = (),
        *,
        older_than_s: float | None = None,
        where: str = "",
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Remove runs that are over, with all that nothing else needs; after a kill the next call goes on.

        Args:
            runs: their ids.
            older_than_s: instead: all that ended so long ago.
            where: instead, or beside that: those that are over and of which this condition is true.
            dry_run: only say what would go.

        Returns:
            ``runs``: of each ``run``, ``outcome`` (REMOVED, TRIMMED: its record stays with what is needed, or
            KEPT), ``bytes``, ``parts`` and ``kept``: why something stays and what to do about it; ``shared``:
            bytes of what no other run needs; ``bytes`` of all together.

        Raises:
            NotFoundError: there is no such run.
            UsageError: no runs are named or chosen, or both, or the condition is none.
        """

    def prune(
        self, kinds: Sequence[str] = (), *, unused_s: float = 86_400.0, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove what nothing needs any more.

        Args:
            kinds: such as ``checkpoints`` and ``environments``; without, all.
            unused_s: caches go that were not used for so long, in seconds.
            dry_run: only say what would go.

        Returns:
            ``kinds``: of each ``count``, ``bytes``, the first ``names``, as ``stays`` what recipes name, and
            as ``trouble`` why something could not be looked at; ``bytes`` of all together.

        Raises:
            UsageError: there is no such kind.
            AccessError: all teams share it, and the caller is no admin.
        """

    def usage(self, limit: int | None = None) -> dict[str, Any]:
        """What lies where, whose it is, and how much room it takes; what two ask for counts once.

        Args:
            limit: of runs, the largest so many.

        Returns:
            ``kinds``: of each ``where`` (home, cache or store), ``kind`` and ``bytes``; ``runs``: of each
            ``run``, ``team``, ``bytes`` and ``parts``, the largest first, and ``more_runs``; ``bytes``.
        """


class ViewsProtocol(Protocol):
    """One's own names for what one looks for in the list of runs; as of `service.users.saved_views`."""

    def listed(self) -> list[dict[str, Any]]:
        """By name: ``name``, ``query``, its filters as one condition in ``where``, and ``changed_at``."""

    def put(self, name: str, query: str) -> str:
        """Keep the address of a list, such as ``state=RUNNING&sort=-cost``; what is kept of it.

        Raises:
            UsageError: it is no name, or too long, or there are too many.
        """

    def remove(self, name: str) -> None:
        """Forget one.

        Raises:
            NotFoundError: there is none of that name.
        """


class WorkflowsProtocol(Protocol):
    """Recipes that a server starts by itself; answers are as of `service.workflows.workflows.Workflows`.

    Raises:
        NotFoundError: (every method with a name) there is none of that name.
    """

    def listed(self) -> list[dict[str, Any]]:
        """All by name, each with what starts it and its newest start."""

    def show(self, name: str) -> dict[str, Any]:
        """One with its recipe and history."""

    def register(
        self, plan: str, *, starts_now: bool = False, keep_s: float = 0.0, queue: bool = False
    ) -> dict[str, Any]:
        """Keep what was planned, of a recipe with ``on``; ``secret`` of its webhook is shown this once.

        Args:
            plan: id of a `RunPlan`; its price is agreed to for each run.
            starts_now: start a run at once, too.
            keep_s: how long rented machines stay warm for the next run, in seconds.
            queue: each run waits where it does not fit in the month's budget.

        Raises:
            UsageError: nothing starts it, it would start itself, or this is no server.
        """

    def pause(self, name: str) -> dict[str, Any]:
        """Start nothing until `resume`."""

    def resume(self, name: str, *, take_over: bool = False) -> dict[str, Any]:
        """Go on, with what comes from now on; ``take_over``: in one's own name."""

    def trigger(self, name: str) -> dict[str, Any]:
        """Start a run by hand."""

    def remove(self, name: str) -> None:
        """Forget it and its history; its runs stay."""

    def rotate(self, name: str) -> dict[str, Any]:
        """A new ``secret`` of its webhook.

        Raises:
            UsageError: it has none.
        """
