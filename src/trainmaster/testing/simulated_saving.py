"""Models and checkpoints in simulated time: real saving and publishing over an object store in memory.

What members leave on nodes is a line of text that names its attempt, so that it can be told whose model is
where. `saving`, `unpublished`, `DirectStore` and all of publishing are real; what a node uploads, and how its
files come to this machine, is not.
"""

from __future__ import annotations

import concurrent.futures as futures
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from trainmaster.artifacts import CheckpointSeries, FileEntry, read_manifest
from trainmaster.artifacts.owner import Owner
from trainmaster.artifacts.publishing import (
    FILES_PREFIX,
    AlreadyPublished,
    Upload,
    publish_model,
    publish_uploads,
)
from trainmaster.cluster.node_files import direct_store
from trainmaster.cluster.node_files.direct_store import DirectStore
from trainmaster.cluster.node_files.sending import Sent, Source
from trainmaster.cluster.node_files.trees import FILE, TreeEntry
from trainmaster.control.attempt import saving, staging, unpublished
from trainmaster.control.decide.effects import Effect, EffectKind, Job
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.jobs import _guarded
from trainmaster.control.task.job_context import NodeGoneError, RelayError
from trainmaster.control.task.layout import Home
from trainmaster.objects.errors import ObjectStoreError, RefusingStoreError, UnreachableStoreError
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec import Distributed, Experiment, Recipe
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError
from trainmaster.spec.states import EndReason
from trainmaster.testing import stepped_store
from trainmaster.testing.simulated_bench import SimulatedActions, SimulatedJobs
from trainmaster.testing.simulated_host import _working
from trainmaster.testing.stepped_store import SteppedStore

if TYPE_CHECKING:
    from trainmaster.artifacts import JSON, Manifest
    from trainmaster.control.loop.run_state import Task
    from trainmaster.control.task.job_context import TaskContext
    from trainmaster.testing.failures import Failures
    from trainmaster.testing.simulated_driver import SimulatedDriver

STORE = "memory://store/x"
_CHECKPOINT = re.compile(r"checkpoint (?:(\d+) )?of .*/(\d+)")
#: A node that is silent for longer is given up.
_PATIENCE_S = 60.0


class Objects:
    """The object store of all homes.

    Args:
        failures: the simulation.

    Attributes:
        away_until: it is silent until then.
        later_s: how far its clock is ahead.
        on_request: is called before each request.
        is_judged: the judge looks at it.
    """

    def __init__(self, failures: Failures) -> None:
        self.stage = SteppedStore()
        self.away_until = 0.0
        self.later_s = 0.0
        self.on_request: Callable[[], None] | None = None
        self.is_judged = False
        self._failures = failures

    @contextmanager
    def served(self) -> Iterator[None]:
        """In the body, ``memory://`` is this store; what asks it may be killed or halted at each request."""

        def step(backend: Any, name: str, key: str, effect: Callable[[], Any]) -> Any:  # noqa: ANN401
            driver = self._failures.driver
            if name == "put_if_absent" and not self.is_judged:
                with self.judged():
                    self._failures.before_commit(backend._name(key))
            if not self.is_judged and _working and _working[-1] is driver.process:
                driver.step(f"store {name} {key}")
                if trouble := self.trouble():
                    raise trouble
            if self.on_request is not None:
                self.on_request()
            self.stage.clock.now_s = self._failures.world.now + self.later_s
            return effect()

        with ExitStack() as stack:
            stack.enter_context(self.stage)
            stack.enter_context(patch.object(stepped_store._SteppedBackend, "_step", step))
            stack.enter_context(patch.object(direct_store, "send", self._send))
            stack.enter_context(patch.object(direct_store, "_look", self._look))
            stack.enter_context(patch.object(futures, "ThreadPoolExecutor", InOrder))
            yield

    @contextmanager
    def judged(self) -> Iterator[None]:
        """In the body, the judge looks at it: that is no step of anybody."""
        self.is_judged = True
        try:
            yield
        finally:
            self.is_judged = False

    def trouble(self) -> ObjectStoreError | None:
        """What is in the way of a request now."""
        now = self._failures.world.now
        if now < self.away_until:
            return UnreachableStoreError("error sending request: ConnectionRefused")
        if now < self._failures.cloud.keys_expired_until:
            return RefusingStoreError("400 Bad Request: ExpiredToken")
        return None

    def text(self, uri: str) -> str | None:
        """What lies at an artifact, if it is there with all its files."""
        try:
            manifest = read_manifest(uri)
            if manifest is None:
                return None
            store = ObjectStore(uri)
            found = [store.get(entry.object) for entry in manifest.files]
        except TrainmasterError as error:
            self._failures.world.note(f"{uri}: {error}")
            return None
        return (
            None if any(data is None for data in found) else b"".join(data or b"" for data in found).decode()
        )

    def _look(self, _: object, sources: Sequence[Source]) -> list[list[TreeEntry]]:
        return [[self._entry(source)] for source in sources]

    def _entry(self, source: Source) -> TreeEntry:
        text = self._failures.left(source.directory)
        return TreeEntry("file", FILE, len(text), _stamp(text), 0o644, "", 1)

    def _send(
        self,
        _: object,
        sources: Sequence[Source],
        uri: str,
        __: object,
        **known: Any,  # noqa: ANN401
    ) -> Sent | None:
        trees = self._look(None, sources)
        if known.get("last") == trees:
            return None
        source, entry = sources[0], trees[0][0]
        text = self._failures.left(source.directory)
        digest = hashlib.sha256(f"{uri} {source.directory} {text}".encode()).hexdigest()
        folder = f"{FILES_PREFIX}{digest[:8]}"
        ObjectStore(uri).put(f"{folder}/file", text.encode())
        file = FileEntry(
            "file",
            size_bytes=len(text),
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            mtime_ns=entry.mtime_ns,
            object=f"{folder}/file",
        )
        return Sent(cast("Any", trees), [Upload(folder, (file,))])


class InOrder:
    """A pool that does one thing after the other, so that schedules repeat."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> InOrder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """See `Executor.map`."""
        return [work(item) for item in items]


def publish_text(uri: str, text: str, attempt: int, owner: Owner) -> None:
    """Publish a model as another driver does: beside ours, or in our name."""

    def make() -> Manifest | None:
        if (present := read_manifest(uri)) is not None:
            raise AlreadyPublished(uri, present)
        folder = f"{FILES_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        ObjectStore(uri).put(f"{folder}/file", text.encode())
        digest = hashlib.sha256(text.encode()).hexdigest()
        file = FileEntry("file", size_bytes=len(text), sha256=digest, object=f"{folder}/file")
        extra: dict[str, JSON] = {"attempt": attempt}
        return publish_uploads(uri, [Upload(folder, (file,))], kind="model", extra=extra, owner=owner)

    publish_model(uri, make, attempt=attempt, owner=owner)


class ProcessJobs(SimulatedJobs):
    """Background jobs of a process, which wait while it stands still."""

    def __init__(self, failures: Failures, driver: SimulatedDriver) -> None:
        super().__init__(failures.world)
        self._driver = driver

    def _later(self, delay_s: float, happen: Callable[[], None]) -> None:
        def then() -> None:
            happen()
            self._driver.wake()

        self._driver.process.after(delay_s, then)


class SimulatedSite:
    """Stands in for `RemoteSite`: its nodes are machines of the cloud."""

    stays = False
    most_staged = 1

    def __init__(self, failures: Failures, driver: SimulatedDriver) -> None:
        self._failures = failures
        clocks = driver.process.clocks_of(DirectStore)
        files = SimpleNamespace(workers=lambda: nullcontext())
        self._direct = DirectStore(cast("Any", files), cast("Any", None), (), **clocks)
        self._direct._delegated = self._delegated  # type: ignore[method-assign]

    def publish_model(self, context: TaskContext, extra: Mapping[str, JSON]) -> bool:
        """See `Site.publish_model`."""
        sources = self._sources(context, "output", is_patient=True)
        return self._direct.publish_model(sources, context.model_uri, extra, context.owner)

    def publish_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> int | None:
        """See `Site.publish_checkpoint`."""
        sources = self._sources(context, "checkpoint", is_patient=is_patient)
        series = CheckpointSeries(context.checkpoints_uri, context.owner)
        number = self._direct.publish_checkpoint(_id(context), sources, series, {"attempt": context.attempt})
        if number is not None:
            self._failures.published.setdefault((context.experiment.name, context.task), []).append(number)
        return number

    def fetch_output(self, context: TaskContext, *, is_final: bool = True, **_: object) -> None:
        """See `Site.fetch_output`."""
        if is_final:
            self._fetch(
                context, "output", context.place.output(context.members[0], first=True), is_patient=True
            )

    def fetch_checkpoint(self, context: TaskContext, *, is_patient: bool = False) -> bool:
        """See `Site.fetch_checkpoint`."""
        self._fetch(context, "checkpoint", context.place.checkpoint, is_patient=is_patient)
        return True

    def where(self, context: TaskContext) -> str:
        """See `Site.where`."""
        return f"on the nodes of {_id(context)}"

    def full_disks(self, _: TaskContext) -> str:
        """See `Site.full_disks`."""
        return ""

    def keep_system_logs(self, _: TaskContext) -> None:
        """See `Site.keep_system_logs`."""

    def lost_data(self, _: TaskContext) -> tuple[bool, str]:
        """See `Site.lost_data`."""
        return False, ""

    def clean_up(self, context: TaskContext, *, is_saved: bool) -> None:
        """See `Site.clean_up`."""
        if is_saved:
            self._failures.judge.removal(context)

    def _sources(self, context: TaskContext, what: str, *, is_patient: bool) -> list[Source]:
        failures = self._failures
        places = failures.places.machines(_id(context), {})
        if not places:
            raise NodeGoneError(f"{_id(context)} has no node any more")
        for _, machine in places:
            one = failures.cloud.instances[machine]
            if one.ended_at is not None or (is_patient and one.cut_until > failures.world.now + _PATIENCE_S):
                raise NodeGoneError(f"{machine} is gone")
            if not is_patient and one.cut_until > failures.world.now:
                raise ProviderError(f"{machine} does not answer")
        access = SimpleNamespace(id=places[0][1], target=SimpleNamespace(address="", shown=places[0][1]))
        return [Source(cast("Any", access), f"{_id(context)}/{what}")]

    def _fetch(self, context: TaskContext, what: str, here: Path, *, is_patient: bool) -> None:
        text = self._failures.left(self._sources(context, what, is_patient=is_patient)[0].directory)
        if text:
            here.mkdir(parents=True, exist_ok=True)
            (here / "file").write_text(text)
            os.utime(here / "file", ns=(_stamp(text), _stamp(text)))

    def _delegated(self, uri: str, sources: Sequence[Source]) -> dict[str, str]:
        failures = self._failures
        if failures.world.now < failures.cloud.keys_expired_until:
            raise UsageError("the profile's SSO session has expired", "Run `aws sso login`.")
        if failures.world.now < failures.objects.away_until:
            raise RelayError(f"{uri}: {failures.objects.trouble()}")
        return {}


class SavingActions(SimulatedActions):
    """A bench whose attempts leave something, which is really saved.

    Args:
        failures: the simulation.
        driver: of the process.
    """

    def __init__(self, failures: Failures, driver: SimulatedDriver) -> None:
        super().__init__(failures.world, failures.plan.work, driver.step)
        self._failures = failures
        self.jobs = ProcessJobs(failures, driver)
        workers = len(failures.plan.work.experiments["train"].members)
        self._actions = AttemptActions(
            home=failures.directory,
            run=failures.run,
            recipe=_recipe(workers),
            secrets={},
            find_models=lambda *_: [],
            site=cast("Any", SimulatedSite(failures, driver)),
            owner=failures.owner,
        )
        self._actions.jobs = cast("Any", self.jobs)
        self._actions.parameters = lambda *_: {}  # type: ignore[method-assign]

    def begin(self, kind: EffectKind, task: Task) -> None:
        """See `AttemptActions.begin`."""
        self._step(f"before {kind}")
        context = self._actions.context(task)
        if kind is EffectKind.STAGE:
            self.adopt(task)
        has_won = EffectKind.SAVE in self.jobs.of(task.experiment, task.number, task.attempt)
        work: dict[EffectKind, Callable[[], Job]] = {
            EffectKind.STAGE: partial(self._stage, context, task),
            EffectKind.SAVE: partial(saving.save, context),
            EffectKind.RECOVER: partial(saving.recover, context),
            EffectKind.CHECKPOINT: partial(saving.checkpoint, context),
            EffectKind.KEEP: partial(unpublished.keep, context, has_won=has_won),
        }

        def do() -> Job:
            job = _guarded(work[kind])
            if job.error.startswith("internal error"):
                self._world.fail(f"{kind} {_id(context)}: {job.error}")
            self._world.note(f"{kind} {_id(context)}: {job.error or 'done'}")
            return job

        self._world.note(f"{kind} {_id(context)} begins")
        self.jobs.begin((*_key(task), kind), do, self._world.rng.uniform(1.0, 10.0))
        self._step(f"after {kind}")

    def clean_up(self, effect: Effect) -> None:
        """See `AttemptActions.clean_up`."""
        self._step("before clean-up")
        self._actions.clean_up(effect)

    def _stage(self, context: TaskContext, task: Task) -> Job:
        if task.attempt == 1:
            return Job(done=True, fields={"restored": None})
        kept, newest = task.kept_checkpoint or task.attempt - 1, None
        try:
            if staging.begins_with_kept(context, kept):
                text = (context.place.checkpoint / "file").read_text()
            else:
                series = CheckpointSeries(context.checkpoints_uri, context.owner)
                newest = series.newest()
                text = "" if newest is None else self._failures.objects.text(series.uri_of(newest)) or ""
        except TrainmasterError as error:
            return Job(done=True, error=str(error), reason=EndReason.NODE_LOST)
        self._require_kept_is_used(context, text)
        return Job(done=True, fields={"restored": newest})

    def _require_kept_is_used(self, context: TaskContext, begun: str) -> None:
        """No attempt begins from an older checkpoint than the one that was fetched here."""
        name, task, number = context.experiment.name, context.task, context.attempt - 1
        place = context.home.attempt(context.run, name, task, number)
        if place.output("", first=True).exists():
            return  # it left a model: its checkpoint is not needed
        kept = place.checkpoint / "file"
        if kept.exists() and _age(begun) < _age(kept.read_text()):
            self._world.fail(f"{_id(context)} begins without the last checkpoint, which is kept here")


def home_in(directory: Path) -> Home:
    """A home on this store, of which a directory is only made when something is fetched to it."""
    return Home(directory, directory / "cache", STORE, f"sqlite:///{directory}/x")


def new_directory(failures: Failures) -> Path:
    """Where a schedule's home would be."""
    return Path(tempfile.gettempdir()) / f"trainmaster-simulation-{failures.world.seed}-{id(failures)}"


def remove(directory: Path) -> None:
    """After a schedule."""
    if directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def _recipe(workers: int) -> Recipe:
    experiment = Experiment(name="train", command="true", distributed=Distributed(workers=workers))
    return Recipe(name="sim", directory=Path("/nonexistent"), experiments={"train": experiment})


def _age(text: str) -> tuple[int, int]:
    """Of which attempt a checkpoint is, and how far that had come."""
    found = _CHECKPOINT.fullmatch(text)
    return (0, 0) if found is None else (int(found[2]), int(found[1] or 0))


def _stamp(text: str) -> int:
    """When its file was written, in nanoseconds; of other texts as many differ."""
    attempt, far = _age(text)
    return (attempt * 1_000_000 + far) * 1_000_000_000 or int(
        hashlib.sha256(text.encode()).hexdigest()[:8], 16
    )


def _id(context: TaskContext) -> str:
    return f"{context.run}/{context.experiment.name}/{context.task}/{context.attempt}"


def _key(task: Task) -> tuple[str, int, int]:
    return task.experiment, task.number, task.attempt
