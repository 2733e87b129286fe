"""`Submissions`: recipes that are sent to a server become runs, each request once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.task.gangs import slots_of
from trainmaster.dataclass import dataclass
from trainmaster.db import Submission, access
from trainmaster.db.ledger import ALL
from trainmaster.db.run_rows import existing
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.local_runs import LocalRuns, isolation_of
from trainmaster.service.driving.recipe_readers import MAX_BYTES, RecipeReaders
from trainmaster.service.models.starting_models import with_own_latest
from trainmaster.service.teams.admission import PRIORITIES, Application
from trainmaster.service.teams.team_budget import OWNER, Budgets, OverBudgetError, TeamBudget
from trainmaster.service.teams.team_volumes import is_volume_name, with_team_volumes, with_versions
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.service.users.caller import Caller, ForbiddenError, Wallet
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RunError, StoreError, UsageError
from trainmaster.spec.private_files import make_private
from trainmaster.spec.processor_limit import processor_limit
from trainmaster.spec.recipe_parts import in_place, named_places
from trainmaster.spec.recipe_source import own_configuration
from trainmaster.spec.units import dollars

if TYPE_CHECKING:
    from trainmaster.service.driving.execution_backend import Session
    from trainmaster.service.service import Service
    from trainmaster.service.users.access import Access
    from trainmaster.spec import Experiment

MAX_KEY: Final = 255
#: What a quote may take of a processor, in seconds.
_PROCESSOR_S: Final = 120.0
_TOO_MUCH_WORK: Final = (
    "Write what differs only in values as `parameters` of one experiment, allow fewer numbers of `workers`, "
    "or ask at home: `trainmaster quote` has no such limit."
)


class KeyUsedError(RunError):
    """An ``Idempotency-Key`` that came with another request before (HTTP 409)."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be run.

    Attributes:
        recipe: its YAML.
        code: SHA-256 of a tar that was sent before; None for a recipe that needs no files.
        provider: replaces the recipe's.
        max_usd: agrees to rent for at most so much.
        agreed_usd_per_hour: agrees to rent for at most so much per hour: what the plan said.
        allow_stale: old prices will do.
        wait: until it fits in the month's budget, instead of being refused.
        keep_s: how long rented machines stay warm for the next run, in seconds.
    """

    recipe: str
    code: str | None = None
    provider: str | None = None
    max_usd: float | None = None
    agreed_usd_per_hour: float | None = None
    allow_stale: bool = False
    wait: bool = False
    keep_s: float = 0.0

    def digest(self) -> str:
        """SHA-256 of the whole request; keys that came later count where they are used, so old ones stay."""
        whole = asdict(self)
        for later in ("agreed_usd_per_hour", "allow_stale", "wait", "keep_s"):
            if not whole[later]:
                del whole[later]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a workflow that a run is for.

    Attributes:
        firing: id of its row: the run is written only while that waits.
        versions: of volumes, by their names: what was newest when it was decided.
    """

    firing: int
    versions: Mapping[str, int]


class Submissions:
    """Takes requests; their runs wait for a driver.

    Args:
        service: of the home.
        access: of the home.
        environ: of the processes that drive.
        is_private: only this machine reaches the server.
        accepted: called when there is a new run.
    """

    def __init__(
        self,
        service: Service,
        access: Access,
        environ: Mapping[str, str],
        *,
        is_private: bool,
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        self._service = service
        self._access = access
        self._environ = environ
        self._is_private = is_private
        self._accepted = accepted
        self._readers = RecipeReaders()

    def read(
        self,
        caller: Caller,
        request: RunRequest,
        versions: Mapping[str, int] | None = None,
        *,
        is_asked: bool = True,
    ) -> Recipe:
        """The recipe of a request, if this caller may have it run.

        Args:
            caller: whose run it would be.
            request: what is to be run.
            versions: of volumes that it names without one, by their names; others are the newest.
            is_asked: the caller asks now; else the server goes on with what was asked before.

        Raises:
            RecipeError: with all mistakes.
            TooOftenError: the caller has too many read.
            NotFoundError: its code was not sent.
            UsageError: it may not be run here.
        """
        uploads = CodeUploads(self._service.home, caller.team)
        if request.code is not None:
            directory = uploads.find(request.code)
        else:
            directory = self._service.home.nothing_sent
            make_private(directory)
        is_shared, is_local = self.is_shared(caller), self._is_local(caller)
        if is_shared:
            user = (caller.account or caller.name) if is_asked else None
            recipe = self._readers.read(request.recipe, str(directory), request.provider, user)
        else:
            defaults = own_configuration(self._environ)
            recipe = Recipe.from_text(
                request.recipe, directory=directory, provider=request.provider, defaults=defaults
            )
        each_place = [in_place(recipe, name) for name in named_places(recipe)]
        mistakes = dict.fromkeys(
            line
            for one in each_place
            for line in refusals(
                one,
                is_shared=is_shared,
                team=caller.team,
                is_local=is_local,
                is_sent=request.code is not None,
            )
        )
        if mistakes:
            raise UsageError("\n".join(mistakes), "See docs/server/tasks-of-teams.md: what it does not run.")
        if is_shared and caller.team and any(capabilities_of(one.provider).is_here for one in each_place):
            isolation_of(self._service.home, caller.team)
            self._check_cores(recipe, caller.team)
        recipe = with_own_latest(self._service.database, recipe, caller)
        return with_team_volumes(with_versions(recipe, versions or {}), self._service.home, caller.team)

    def convert(self, caller: Caller, source: str, file: str) -> dict[str, Any]:
        """A recipe of a file of another tool, as ``trainmaster convert --json`` has it.

        Raises:
            UsageError: it is of no kind that is known, or no recipe can say it.
        """
        return self._readers.convert(source, file, caller.account or caller.name)

    def first_recipe(self, caller: Caller, code: str, script: str | None, name: str) -> dict[str, Any]:
        """A recipe for code that was sent, as ``trainmaster init --json`` has it; nothing of it is run.

        Raises:
            ForbiddenError: others may have sent it.
            NotFoundError: it was not sent.
            UsageError: there is no script, or it is no Python.
        """
        from trainmaster.service.first_recipe import first_recipe

        if self.is_shared(caller):  # it names files, and what stands in them
            raise ForbiddenError(
                "a server for others, too, looks into no code",
                "`trainmaster init` does, where it is.",
            )
        directory = CodeUploads(self._service.home, caller.team).find(code)
        if script is not None and _leaves(directory, script):
            raise UsageError(f"script: {script}; it is outside what was sent", "Name one in the code.")
        return asdict(first_recipe(directory, script, may_run=False, name=name))

    def options_of(self, caller: Caller, code: str, script: str) -> list[dict[str, Any]]:
        """What a script of code that was sent takes on its command line, as its text says; nothing is run.

        Raises:
            NotFoundError: it was not sent.
            RecipeError, TooOftenError: see `RecipeReaders.options`.
        """
        directory = CodeUploads(self._service.home, caller.team).find(code)
        place = directory / script
        if _leaves(directory, script) or not place.is_file() or place.stat().st_size > MAX_BYTES:
            return []
        source = place.read_text(encoding="utf-8", errors="replace")
        path = "" if self.is_shared(caller) else str(place)
        return self._readers.options(source, path, caller.account or caller.name)

    def _check_cores(self, recipe: Recipe, team: str) -> None:
        """Refuse what would wait for ever."""
        most = Budgets(self._service.database.read, self._service.database.clock_s())[team].cpus_at_once
        for name, experiment in recipe.experiments.items():
            if most is not None and (needed := slots_of(experiment)) > most:
                cores = f"{needed:g} core{'s' * (needed != 1)}"
                raise UsageError(
                    f"experiments.{name}: a task takes {cores}, and all tasks of {team} together "
                    f"may take {most} of this machine",
                    "Lower `hardware.cpus` or `workers`, or have the limit raised.",
                )

    def code_of(self, caller: Caller, run: str) -> str | None:
        """The code of a run, for one more with changes: a digest for `RunRequest`; None if a URL names it.

        Raises:
            NotFoundError: there is no such run, or it is not the caller's to see.
            UsageError: it was a part of a directory that was not sent, or is not here.
        """
        from trainmaster.service.runs.stored_recipe import stored_recipe

        row = self._service.database.run_row(run)
        row = existing(row if caller.sees(row["team"]) else None, run)
        recipe = stored_recipe(row)
        uploads = CodeUploads(self._service.home, caller.team)
        if "://" in recipe.code:
            return None
        if uploads.has(recipe.directory.name):
            return recipe.directory.name
        if recipe.code != ".":
            raise UsageError(
                f"the code of {run} was only a part of where its recipe lies", "Send code and recipe anew."
            )
        snapshot = self._service.replicas.code(row)
        if not snapshot.is_dir():
            raise UsageError(f"the code of {run} is not on this server", "Send code and recipe anew.")
        return uploads.add_directory(snapshot)

    def submit(
        self, caller: Caller, request: RunRequest, key: str = "", start: Start | None = None
    ) -> tuple[str, bool, list[str]]:
        """Accept a request; a driver takes its run.

        Args:
            caller: whose run it will be.
            request: what is to be run.
            key: the same key means the same request: it is accepted once, however often it is sent.
            start: of a workflow.

        Returns:
            The id of the run, whether it is a new one, and notes for people.

        Raises:
            KeyUsedError: the key came with another request.
            UsageError: it cannot run; nothing was started.
            StartTakenError: the start of a workflow has its run.
        """
        caller.need("run")
        if len(key) > MAX_KEY:
            raise UsageError(f"a key of {len(key)} characters", f"Use at most {MAX_KEY}: a UUID will do.")
        if (known := self._known(caller, request, key)) is not None:
            return known, False, []
        versions = None if start is None else start.versions
        recipe = self.read(caller, request, versions, is_asked=start is None)
        if recipe.on and start is None:
            raise UsageError(
                f"on: {recipe.on[0].key}; it is a workflow, which the server keeps and starts itself",
                "POST /api/v1/workflows registers it, as `trainmaster run` does; without `on` it runs once.",
            )
        path = self.keep(recipe)
        digest, firing = request.digest() if key else "", None if start is None else start.firing
        submission = Submission(caller.name, caller.team, key, digest, firing)
        notes: list[str] = []
        try:
            session = self._start(recipe, path, submission, request, notes, caller.wallet)
        except (StoreError, OverBudgetError):
            if (known := self._known(caller, request, key)) is None:
                raise
            return known, False, []  # it was sent twice at the same time
        self._accepted()
        return session.run, True, [*notes, *session.notes]

    def need_entry(self, caller: Caller, run: str) -> None:
        """Refuse whom the machines of a run are closed to: those of the server itself to all but its owner.

        Raises:
            NotFoundError: there is no such run, or it is not the caller's to see.
            ForbiddenError: they are.
        """
        caller.need("run")
        row = self._service.database.run_row(run)
        row = existing(row if caller.sees(row["team"]) else None, run)
        if self.is_shared(caller) and not capabilities_of(row["provider"]).rents:
            raise ForbiddenError(
                f"{run} is on machines of the server's own, which are closed to others",
                "Runs on rented machines are open to their team.",
            )

    def fetch_system_log(
        self, caller: Caller, run: str, member: str | None, environ: Mapping[str, str]
    ) -> str:
        """What the operating system of a machine of a run says; see `need_entry` and `fetch_system_log`."""
        from trainmaster.service.runs.system_logs import fetch_system_log

        self.need_entry(caller, run)
        return fetch_system_log(self._service, run, member, environ, is_for_others=self.is_shared(caller))

    def may_use_machine(self, caller: Caller) -> bool:
        """Whether the server's own machine, as its user, does what somebody writes."""
        return caller.sees_all or not self.is_shared(caller)

    def need_machine(self, caller: Caller) -> None:
        """Refuse whom the server's own machine does not obey.

        Raises:
            ForbiddenError: the server is for others, too, and he is not its admin.
        """
        caller.need("run")
        if not self.may_use_machine(caller):
            raise ForbiddenError(
                "a notebook on the server's machine could do all that the server may",
                "Open it on a rented machine: `trainmaster notebook RUN --provider PROVIDER`. Without a run, "
                "on your own: `trainmaster --local notebook`.",
            )

    # --- parts --------------------------------------------------------------------------------------

    def is_shared(self, caller: Caller) -> bool:
        """Whether others than the owner of the home may be behind this."""
        return self._is_shared_with(caller.team)

    def _is_shared_with(self, team: str | None) -> bool:
        return team is not None or not self._is_private or bool(self._access.teams())

    def processor_limit(self, caller: Caller) -> AbstractContextManager[None]:
        """Within, what is worked out for others than the owner of the home takes so much of a processor.

        See `trainmaster.spec.processor_limit.processor_limit`.
        """
        return processor_limit(_PROCESSOR_S, _TOO_MUCH_WORK) if self.is_shared(caller) else nullcontext()

    def may_run_on(self, caller: Caller, provider: str) -> bool:
        """Whether what a caller sends may name a provider."""
        if not self.is_shared(caller) or capabilities_of(provider).rents:
            return True
        return capabilities_of(provider).is_here and self._is_local(caller)

    def _is_local(self, caller: Caller) -> bool:
        """Whether this machine runs tasks of a caller's team, apart from it."""
        return bool(caller.team) and LocalRuns.of(self._service.home) is not None

    def _known(self, caller: Caller, request: RunRequest, key: str) -> str | None:
        row = access.submission(self._service.database, caller.team or "", key) if key else None
        if row is None:
            return None
        if row["digest"] != request.digest():
            raise KeyUsedError(
                f"the key {key!r} came with another request, which became {row['run_id']}",
                "Use a new key for a new request.",
            )
        return str(row["run_id"])

    def _budgets(self, team: str | None) -> list[TeamBudget]:
        """Those that a run of a team draws on."""
        found = Budgets(self._service.database.read, self._service.database.clock_s())
        return [found[team or OWNER], found[ALL]]

    def check_keeping(self, team: str | None, wallet: Wallet | None, keep_s: float) -> None:
        """Refuse to keep machines warm that would cost when the run is over, and count nowhere.

        Args:
            team: whose run it is.
            wallet: that pays for it.
            keep_s: how long they are to stay warm.

        Raises:
            UsageError: there are limits, or a wallet.
        """
        if not keep_s:
            return
        why = ""
        if limited := next((each for each in self._budgets(team) if each.is_limited), None):
            why = f"{limited.who} {limited.has} limits, and machines that stay warm are in none of them"
        elif wallet is not None:
            why = "machines that stay warm are in no wallet"
        if why:
            raise UsageError(
                f"no machines stay warm for the next run (`--keep`, by REST `keep_s`): {why}",
                "Leave it out: machines are given back when the run is over.",
            )

    def keep(self, recipe: Recipe) -> Path:
        """Write its text where what drives it finds it."""
        digest = hashlib.sha256(recipe.source_text.encode()).hexdigest()[:10]
        path = self._service.home.root / "recipes" / f"{recipe.name[:100]}-{digest}.yaml"
        make_private(path.parent)
        path.write_text(recipe.source_text, encoding="utf-8")
        return path

    def _start(
        self,
        recipe: Recipe,
        path: Path,
        submission: Submission,
        request: RunRequest,
        notes: list[str],
        wallet: Wallet | None,
    ) -> Session:
        from trainmaster.service.run_planning import RunPlanner, capped, capped_as_paid

        def tell(line: str) -> None:
            notes.append(line.removeprefix("note: "))

        if (most_usd := request.max_usd) is not None:
            recipe = capped(recipe, most_usd)
            if recipe.budget and recipe.budget.total_usd and recipe.budget.total_usd < most_usd:
                less = f"it is less than the {dollars(most_usd)} agreed to"
                tell(f"budget.total of the recipe, {dollars(recipe.budget.total_usd)}, holds: {less}")
        agreed_usd_per_hour = request.agreed_usd_per_hour
        can_agree = request.max_usd is not None or agreed_usd_per_hour is not None
        service = self._service.of_team(submission.team)
        measures = not self._is_shared_with(submission.team)
        planner = RunPlanner(service, self._environ, tell, lambda _: None, measures=measures)
        self.check_keeping(submission.team, wallet, request.keep_s)
        budgets = self._budgets(submission.team)
        plan = planner.plan(
            recipe, allow_stale=request.allow_stale, can_agree=can_agree, keep_s=request.keep_s
        )
        if plan.offer is not None:
            if agreed_usd_per_hour is not None and plan.offer.most_usd_per_hour > agreed_usd_per_hour:
                raise UsageError(
                    f"it costs at most ${plan.offer.most_usd_per_hour:.4g} per hour now, and "
                    f"${agreed_usd_per_hour:.4g} was agreed to",
                    "Nothing was started. Plan it again.",
                )
            if plan.offer.costs and not can_agree:
                raise UsageError(
                    "\n".join(["this rents machines, which was not agreed to:", *plan.offer.lines]),
                    'Nothing was started. Say what all of it may cost at most: `"max_usd": 20`.',
                )
            from trainmaster.service.renting.provider_check import check_with_provider

            notes += check_with_provider(service, plan.offer.plans, self._environ, submission.team)
        application = Application(
            PRIORITIES[recipe.priority],
            0.0 if plan.offer is None else plan.offer.most_usd_per_hour,
            request.wait,
        )
        recipe = plan.recipe
        if plan.offer is not None:
            recipe = capped_as_paid(plan.offer, budgets, wallet, service.database, tell)
        return service.start(
            recipe,
            path,
            self._environ,
            plan.offer,
            request.keep_s,
            submission=submission,
            application=application,
            wallet=wallet,
        )


def refusals(
    recipe: Recipe, *, is_shared: bool, team: str | None, is_local: bool = False, is_sent: bool = True
) -> Iterator[str]:
    """What a server does not do for others, a line per key: it would be done as the server's user.

    Of providers, code and data what is allowed is named; what else a recipe has runs on rented machines.
    A new key that is read on this machine belongs here.

    Args:
        recipe: as read, in the directory of what was sent.
        is_shared: others than the owner of the home may have sent it.
        team: whose run it would be; None for the owner's.
        is_local: this machine runs tasks of teams, apart from it.
        is_sent: its code is there; else it is not asked whether directories are in it.
    """
    if not is_shared:
        return
    provides = capabilities_of(recipe.provider)
    runs_here = is_local and provides.is_here
    if not provides.rents and not runs_here:
        line = f"provider: {recipe.provider}; the code of others runs on rented machines only"
        may = provides.is_here and not is_local
        yield line + (
            ", unless this server is started with `--local-runs`, and it is sent for a team" if may else ""
        )
    if recipe.code != "." and _leaves(recipe.directory, recipe.code):
        yield f"code: {recipe.code}; only what was sent: a server gets no code with its own keys"
    if recipe.notify:
        yield "notify: commands of others do not run as the user of this server"
    for name, experiment in recipe.experiments.items():
        if experiment.secrets and team is None:  # a team has its own, which are looked for when it starts
            yield f"experiments.{name}.secrets: the server's own are not for others; send it for a team"
        if experiment.container and team is None:
            yield f"experiments.{name}.container: the server's images are not for others; send it for a team"
        lines = _refusals(experiment, recipe.directory, is_sent=is_sent)
        if runs_here:
            lines = chain(lines, _refusals_here(experiment))
        yield from (f"experiments.{name}.{line}" for line in lines)


def _refusals(experiment: Experiment, directory: Path, *, is_sent: bool) -> Iterator[str]:
    if experiment.roles is not None:
        yield "roles: Ansible may do anything on the machine that it runs on, which is this server"
    if experiment.metrics is not None and experiment.metrics.pattern is not None:
        yield "metrics.pattern: a pattern can keep the server busy for ever; write TRAINMASTER_METRICS"
    for key, source in experiment.data.items():
        where = f"data.{key}"
        if source.directory is not None and _leaves(directory, source.directory, is_there=is_sent):
            yield f"{where}.dir: {source.directory}; it is outside what was sent"
        if source.volume is not None and not is_volume_name(source.volume):
            yield f"{where}.volume: {source.volume}; only the name of a volume of the team"
        if source.url is not None and (not source.url.startswith("https://") or source.url_variables):
            yield f"{where}.url: {source.url}; only https, without variables: no keys of the server are used"


def _refusals_here(experiment: Experiment) -> Iterator[str]:
    """What needs another network than that of its own members, or would be shared by teams."""
    if experiment.container is not None:
        yield "container: tasks of teams run in this machine's own image here, or in none"
    if experiment.serve is not None:
        yield "serve: services of teams run on rented machines only; name another provider"
    if experiment.setup is not None:
        yield "setup: what tasks of teams need is installed on this machine, or in its image"
    for key, source in experiment.data.items():
        if source.url is not None:
            yield f"data.{key}.url: this server fetches no URL for others; push it as a volume"


def _leaves(directory: Path, text: str, *, is_there: bool = True) -> bool:
    """Whether a path leads out of a recipe's directory, also by ``~``, ``..`` or a link; or to nothing."""
    try:
        place = (directory / Path(text).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError):
        return True
    return "://" in text or not place.is_relative_to(directory.resolve()) or (is_there and not place.exists())
