"""`RemoteClient`: a server, over REST; fulfils `ClientProtocol` and is described there."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

from trainmaster.api.port_forward import PortForward
from trainmaster.api.remote.connection import RestConnection, quoted
from trainmaster.api.remote.following import RunFollower, follow_logs, rows_of, searched
from trainmaster.api.remote.protocol_parts import (
    RemoteAdministration,
    RemoteApps,
    RemoteImages,
    RemoteRegistry,
    RemoteServices,
    RemoteStorage,
    RemoteViews,
    RemoteWorkflows,
    names_file_of,
    sent_text,
)
from trainmaster.api.remote.streaming import Listening, messages
from trainmaster.api.remote.tunnels import WebsocketStream, execute
from trainmaster.api.results import Accepted, Downloaded, Event, LogQuery, Model, RunPlan, RunStatus, Watched
from trainmaster.service.runs.highlights import Highlights
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError
from trainmaster.spec.plain_json import typed
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.api.protocol import Stream
    from trainmaster.service import OfferFilter, ProfileProgress, Quote, RecommendQuery
    from trainmaster.service.driving.run_news import RunNews
    from trainmaster.service.models.unpublished_models import SavedModel
    from trainmaster.service.offer_list import OfferList
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.service.runs.run_picture import RunPicture
    from trainmaster.service.volumes.stored import RemovedVolume, VolumeInfo
    from trainmaster.spec import Recipe

_WATCH_S: Final = 1.0
#: Of each log that was there when a run was resumed so much is shown at most, as at home.
_UNSEEN_BYTES: Final = 64 << 10
#: The server sends at most so many of a list at once.
_PAGE: Final = 1000
#: Of a line of a log, in bytes: so many times the lines that are asked for are looked at from the end.
_LINE_BYTES: Final = 4096


class RemoteClient:
    """A server.

    Args:
        connection: to it.
    """

    #: A run whose server is gone is driven by another one; one that waits in the queue, by none.
    undriven_s: float = math.inf

    def __init__(self, connection: RestConnection) -> None:
        self._to = connection
        self.url = connection.url
        self.apps = RemoteApps(connection)
        self.services = RemoteServices(connection)
        self.images = RemoteImages(connection)
        self.registry = RemoteRegistry(connection)
        self.administration = RemoteAdministration(connection)
        #: What was planned here last, and the run of it: that need not be asked for.
        self._planned: tuple[Recipe, RunPlan] | None = None
        self._last: tuple[str, Recipe] | None = None
        self._before: dict[str, list[Event]] = {}  # what had happened to a run when it was resumed
        self.workflows = RemoteWorkflows(connection)
        self.storage = RemoteStorage(connection)
        self.views = RemoteViews(connection)

    @classmethod
    def of_url(cls, url: str, token: str | None = None) -> RemoteClient:
        """One with that token, or the one that `Contexts.of_url` finds."""
        from trainmaster.api.remote.contexts import Contexts

        found = Contexts().of_url(url, token)
        return cls(RestConnection(found.url, found.token, found.fingerprint))

    def __reduce__(self) -> tuple[Callable[[str], RemoteClient], tuple[str]]:
        """Another process asks the same server; a token is in no pickle, so it must be found there."""
        return RemoteClient.of_url, (self.url,)

    def close(self) -> None:
        """Give back connections; its runs go on."""
        self._to.close()

    # --- starting, and going on -------------------------------------------------------------------

    def plan_run(
        self,
        recipe: Recipe,
        path: str,
        *,
        allow_stale: bool = False,
        can_agree: bool = True,
        measure_first: bool = False,
        keep_s: float = 0.0,
    ) -> Stream[str | ProfileProgress | Quote | RunPlan]:
        from trainmaster.api.remote.asking import asked, plan_of

        options = {
            "allow_stale": allow_stale,
            "can_agree": can_agree,
            "measure_first": measure_first,
            **({"keep_s": keep_s} if keep_s else {}),  # a server of before does not know it
        }

        def read(found: Mapping[str, Any]) -> RunPlan:
            plan = plan_of(found)
            self._planned = recipe, plan
            return plan

        return asked(self._to, "/plans", lambda: self._sent(recipe), options, read, recipe=recipe)

    def quote_recipe(self, recipe: Recipe, options: QuoteOptions) -> Stream[str | ProfileProgress | Quote]:
        from trainmaster.api.remote.asking import QUOTES, asked, options_of, quote_of

        sent = options_of(options)
        return asked(self._to, QUOTES, lambda: self._sent(recipe), sent, quote_of, recipe=recipe)

    def asked_quotes(self) -> list[dict[str, Any]]:
        return list(self._to.get("/quotes")["quotes"])

    def _sent(self, recipe: Recipe) -> Generator[str, None, dict[str, Any]]:
        """Sends the code, and tells how far it is, and notes; what stands for the recipe in requests."""
        from trainmaster.api.remote.directory_tar import pack

        with tempfile.TemporaryFile() as packed:
            digest, notes = pack(recipe, packed)
            code = yield from self._put_code(digest, packed)
        yield from (f"note: {note}" for note in (*recipe.notes, *notes))
        return {**sent_text(recipe), "code": code}

    def _put_code(self, digest: str, packed: IO[bytes]) -> Generator[str, None, str]:
        """Send a tar that is named by its SHA-256, unless it is there; what the server calls it."""
        try:
            self._to.ask("HEAD", f"/code/{digest}", {})
        except TrainmasterError:  # not there, or refused: only the answer to what is sent says why
            from trainmaster.api.remote.uploads import CODE_PIECE_BYTES, send_code

            if packed.seek(0, 2) > CODE_PIECE_BYTES:
                return (yield from send_code(self._to, digest, packed))
            self._to.ask("PUT", f"/code/{digest}", {}, packed, kind="application/x-tar")
        return digest

    def accept_run(
        self,
        plan: str,
        *,
        agreed_usd_per_hour: float = 0.0,
        keep_s: float = 0.0,
        queue: bool = False,
        on_cluster: bool = False,
        max_usd: float | None = None,
    ) -> Accepted:
        if on_cluster:
            raise UsageError(
                f"{self.url} drives the run itself: no machine of its own needs to", "Leave out --on-cluster."
            )
        recipe, planned = self._planned or (None, None)
        if planned is None or planned.id != plan or not plan:
            recipe, planned = None, self._plan(plan)
        usd = planned.most_usd_per_hour
        if usd > agreed_usd_per_hour:
            raise UsageError(
                f"it costs at most ${usd:.4g} per hour, which was not agreed to",
                "Nothing was started. Agree to it, or change the recipe.",
            )
        body = {"plan": plan, "wait": queue, "keep_s": keep_s}
        body |= {} if max_usd is None else {"max_usd": max_usd}
        run = self._to.post("/runs", body, key=plan)
        if recipe is not None:
            self._last = run["run"], recipe
        return self._accepted(run)

    def _plan(self, name: str) -> RunPlan:
        from trainmaster.api.remote.asking import plan_of

        answer = self._to.get(f"/plans/{quoted(name)}")["answer"] if name else None
        if answer is None:
            raise NotFoundError(f"there is no plan {name!r}", "Plan the run again.")
        return plan_of(answer)

    def take_run(self, run: str, *, max_usd: float | None = None) -> Accepted | None:
        line = self.brief(run)
        is_over = line["reason"] == EndReason.SUCCEEDED
        if is_over or (line["driven"] and max_usd is None):
            return None
        body = {} if max_usd is None else {"max_usd": max_usd}
        self._before[run] = self._events_until_now(run)
        return self._accepted(self._to.post(f"/runs/{quoted(run)}/resume", body, repeats=max_usd is None))

    def _accepted(self, status: dict[str, Any]) -> Accepted:
        waits_for = status.get("queued", {}).get("waits_for")
        notes = (*status.get("notes", ()), *([f"it waits for {waits_for}"] if waits_for else ()))
        rents = status["rents"] if "rents" in status else self._line(status["run"])["rents"]
        return Accepted(status["run"], notes, bool(rents), self.url)

    def drive_run(self, run: str, view_every_s: float) -> Stream[RunNews | str]:
        def news() -> Generator[RunNews | str]:
            from trainmaster.spec import Recipe

            known, recipe = self._last or ("", None)
            if recipe is None or known != run:
                recipe = Recipe.from_text(self._text(run))
            before = self._before.get(run, [])
            follower = RunFollower(recipe, lambda: self._status(run), view_every_s, before)
            yield from follower.follow(messages(self._to, run, _UNSEEN_BYTES if before else None))

        return Listening(news())

    def detach_run(self, run: str) -> None:
        """A server drives it in any case."""

    def watch_run(self, run: str) -> Iterator[Watched]:
        line = self._line(run)
        before = self._events_until_now(run)
        seen = before[-1].id if before else 0
        while True:  # whichever server drives it: when its server is gone, another one does
            is_over = line["line"]["state"] == State.DONE  # looked at first: it may end while we look
            events: list[Event] = []
            while page := self.events(run, seen):
                events += page
                seen = page[-1].id
            line = self._line(run)
            yield Watched(tuple(events), line["line"], line["rents"])
            if is_over:
                return
            self._to.sleep(_WATCH_S)

    def _events_until_now(self, run: str) -> list[Event]:
        found: list[Event] = []
        while page := self.events(run, found[-1].id if found else 0):
            found += page
        return found

    def cancel(self, run: str) -> None:
        self._to.post(f"/runs/{quoted(run)}/cancel", repeats=True)

    def cancel_tasks(self, run: str, tasks: Sequence[str]) -> list[dict[str, Any]]:
        found = self._to.post(f"/runs/{quoted(run)}/tasks/cancel", {"tasks": list(tasks)}, repeats=True)
        return list(found["tasks"])

    def answer(self, run: str, experiment: str, *, is_given: bool, why: str = "") -> None:
        body = {"approve": is_given, "why": why}
        self._to.post(f"/runs/{quoted(run)}/experiments/{quoted(experiment)}/approval", body)

    def save_models(self, run: str) -> list[SavedModel]:
        from trainmaster.service.models.unpublished_models import SavedModel

        saved = self._to.post(f"/runs/{quoted(run)}/models/save", repeats=True)["models"]
        return [SavedModel(each["name"], each["uri"], each["error"]) for each in saved]

    def deliver_left(self, run: str) -> str:
        """A server tells what is to be told by itself."""
        return ""

    # --- runs ------------------------------------------------------------------------------------

    def resolve(self, text: str) -> str:
        return str(self._to.get("/find-run", name=text)["run"])

    def listed(
        self, limit: int | None = None, after: str | None = None, where: str = "", sort: str = ""
    ) -> dict[str, Any]:
        if limit is not None and limit < 1:
            raise UsageError(f"{limit} is no number of runs to list", "Give a limit of 1 or more.")
        found: list[dict[str, Any]] = []
        older, cursor = 0, after
        while limit is None or len(found) < limit:
            most = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._to.get("/runs", limit=most, cursor=cursor, where=where or None, sort=sort or None)
            found += page["runs"]
            older, cursor = page["older"], page["next"]
            if cursor is None:
                break
        return {"runs": found} if limit is None else {"runs": found, "older": older}

    def describe(self, run: str, labels: Mapping[str, str | None], note: str | None = None) -> dict[str, Any]:
        body = json.dumps({"labels": dict(labels), "note": note}).encode()
        return dict(self._to.ask("PATCH", f"/runs/{quoted(run)}", {}, body, repeats=True))

    def _text(self, run: str) -> str:
        """Its recipe."""
        return b"".join(self._to.pieces(f"/runs/{quoted(run)}/recipe", {})).decode()

    def brief(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self._line(run)["line"]
        return found

    def _line(self, run: str) -> dict[str, Any]:
        return self._to.get(f"/runs/{quoted(run)}/line")

    def status(self, run: str) -> RunStatus:
        return RunStatus.of(self._status(run))

    def _status(self, run: str) -> dict[str, Any]:
        return self._to.get(f"/runs/{quoted(run)}")

    def highlights(self, run: str) -> Highlights:
        return typed(Highlights, self._to.get(f"/runs/{quoted(run)}/highlights"), strict=False)

    def models(self, run: str | None = None) -> list[Model]:
        found: list[Model] = []
        cursor = None
        while True:
            page = self._to.get("/models", run=run, limit=_PAGE, cursor=cursor)
            found += [self._model(row) for row in page["models"]]
            cursor = page["next"]
            if cursor is None:
                return found

    def _model(self, row: dict[str, Any]) -> Model:
        return FetchedModel.of(self, Model(*(row[name] for name in Model.__slots__)))

    def find_model(self, name: str) -> str:
        return str(self._to.get("/find-model", name=name)["uri"])

    def model_files(self, name: str) -> list[str]:
        at = self._to.get("/find-model", name=name)
        found = self._to.get(f"/models/{at['run']}/{at['experiment']}/{at['task']}")
        return [each["path"] for each in found["files"]]

    def fetch_model(self, name: str, directory: Path) -> Downloaded:
        from trainmaster.api.remote.downloads import download

        found = self._to.get("/find-model", name=name)
        return download(self._to, found["run"], found["experiment"], found["task"], directory)

    def check_models(self, runs: Sequence[str] = (), *, is_deep: bool = False) -> dict[str, Any]:
        if is_deep:
            from trainmaster.api.remote.volumes import check_models

            return check_models(self._to, runs, deep=True, say=lambda _: None)
        found: dict[str, Any] = {"models": 0, "checkpoints": 0, "damaged": [], "unnamed": [], "unread": []}
        for run in runs or [row["run"] for row in self.listed()["runs"]]:
            for key, seen in self._to.get(f"/runs/{quoted(run)}/models/check").items():
                found[key] += seen
        return found

    def export(self, run: str, file: Path) -> None:
        from trainmaster.service.runs.capsule import new_file

        with new_file(file) as opened:
            for piece in self._to.pieces(f"/runs/{quoted(run)}/capsule.zip", {}):
                opened.write(piece)

    def metrics(
        self, run: str, experiment: str | None = None, task: int | None = None
    ) -> list[dict[str, Any]]:
        query = {"experiment": experiment, "task": task, "nan": "true"}
        return list(rows_of(self._to.pieces(f"/runs/{quoted(run)}/points", query, is_same=False)))

    def picture(self, run: str) -> RunPicture:
        from trainmaster.service.runs.run_picture import RunPicture

        return RunPicture.from_json(self._to.get(f"/runs/{quoted(run)}/picture"))

    def targets(self, run: str) -> list[dict[str, Any]]:
        return list(self._to.get(f"/runs/{quoted(run)}/targets")["targets"])

    def curves(self, run: str, keys: Sequence[str] = (), points: int = 200) -> list[dict[str, Any]]:
        found = self._to.get(f"/runs/{quoted(run)}/metrics", keys=",".join(keys) or None, points=points)
        return list(found["metrics"])

    def compare(self, runs: Sequence[str]) -> dict[str, Any]:
        return self._to.get("/compare", run=list(runs))

    def logs(self, run: str, query: LogQuery) -> Iterator[bytes]:
        from trainmaster.service.runs.log_streams import LineChoice

        choice = LineChoice.of(query.tail, query.grep, query.since, time.time())  # what is wrong is said here
        if query.follow:
            return self._followed(run, query)
        asks = {"experiment": query.experiment, "task": query.task, "member": query.member}
        asks |= {"since": query.since, "tail": query.tail if query.grep is None else None}
        asks |= {"system": query.system or None, "attempt": query.attempt}
        pieces = self._to.pieces(f"/runs/{quoted(run)}/logs", asks, is_same=False)
        if choice is None or choice.pattern is None:
            return pieces
        return searched(pieces, choice.pattern, query.tail)

    def fetch_system_log(self, run: str, member: str | None = None) -> str:
        return str(self._to.post(f"/runs/{quoted(run)}/logs/system", member=member)["said"])

    def search_logs(
        self, text: str, limit: int, after: str | None = None, since: str | None = None
    ) -> dict[str, Any]:
        return dict(self._to.get("/logs", text=text, limit=limit, cursor=after, since=since))

    def _followed(self, run: str, query: LogQuery) -> Iterator[bytes]:
        from trainmaster.spec import Recipe

        asks = {"experiment": query.experiment, "task": query.task, "tail": 0}
        path = f"/runs/{quoted(run)}/logs"
        for _ in self._to.pieces(path, asks, is_same=False):
            pass  # only what is not there is said
        experiments = Recipe.from_text(self._text(run)).experiments.values()
        chosen = [found for found in experiments if query.experiment in (None, found.name)]
        status = self._status(run)["experiments"]
        streams, names = 0, set[str]()
        for found in chosen:
            its = [f"{role.name}-{index}" for role in found.members() for index in range(role.count)]
            tasks = 1 if query.task is not None else status[found.name]["tasks"]["total"]
            streams += tasks * (1 if query.member is not None else len(its))
            names |= {*its}
        is_labelled = streams > 1 or any(found.retries for found in chosen)
        tail = None if query.tail is None else max(1 << 16, query.tail * _LINE_BYTES)
        told = messages(self._to, run, tail, query.since)
        yield from follow_logs(told, query, run, names, is_labelled=is_labelled)
        if query.attempt is not None:  # it may have come meanwhile
            yield from self._to.pieces(path, asks | {"attempt": query.attempt}, is_same=False)

    def events(self, run: str, after: int = 0) -> list[Event]:
        rows = self._to.get(f"/runs/{quoted(run)}/events", after=after)["events"]
        return [Event.of(row) for row in rows]

    def execute(
        self,
        run: str,
        member: str | None,
        command: Sequence[str] = (),
        files: tuple[int, int, int] = (0, 1, 2),
        *,
        is_terminal: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> int:

        return execute(self._to, run, member, command, files, tell, is_terminal=is_terminal)

    def forward(
        self, run: str, member: str | None, port: int, local_port: int, tell: Callable[[str], None]
    ) -> PortForward:

        return PortForward(lambda: WebsocketStream(self._to, run, member, port), local_port, tell)

    # --- quotes and machines -------------------------------------------------------------------------

    def recommend(self, wish: RecommendQuery, profile: str) -> dict[str, Any]:
        return self._to.get("/recommend", **asdict(wish), profile=profile)

    def cost(self, by: str = "month", since: str = "", where: str = "") -> dict[str, Any]:
        return dict(self._to.get("/cost", by=by, since=since or None, where=where or None))

    def wallet(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._to.get("/wallet")["wallet"]
        return found

    def overview(self) -> dict[str, Any]:
        return dict(self._to.get("/overview"))

    def score(self) -> dict[str, Any]:
        return self._to.get("/score")

    def convert(self, source: str, file: str = "job") -> dict[str, Any]:
        return dict(self._to.post("/recipes/convert", {"source": source, "file": file}, repeats=True))

    def first_recipe(self, directory: Path, script: str | None = None) -> dict[str, Any]:
        from trainmaster.spec import Recipe

        text = "experiments: {main: {command: 'true'}}"  # what is sent is its code
        sent = self._sent(Recipe.from_text(text, directory=directory))
        body: dict[str, Any] = {"script": script, "name": directory.absolute().name}
        try:
            while True:
                next(sent)
        except StopIteration as done:
            body["code"] = done.value["code"]
        return dict(self._to.post("/recipes/init", body, repeats=True))

    def check(self, recipe: Recipe) -> list[str]:
        from trainmaster.api.remote.directory_tar import pack
        from trainmaster.control.checks.inputs import missing_script_notes

        with tempfile.TemporaryFile() as packed:  # it is not sent, but would be like this
            notes = [*recipe.notes, *pack(recipe, packed)[1], *missing_script_notes(recipe)]
        with names_file_of(recipe):
            return [*notes, *self._to.post("/recipes/check", sent_text(recipe), repeats=True)["notes"]]

    def dry_run(self, recipe: Recipe) -> dict[str, Any]:
        with names_file_of(recipe):
            return dict(self._to.post("/runs/dry-run", sent_text(recipe), repeats=True))

    def configuration(self, directory: str) -> list[dict[str, Any]]:
        return list(self._to.get("/configuration")["values"])

    def score_line(self, provider: str) -> str:
        return str(self._to.get("/score/line", provider=provider)["line"])

    def offers(
        self, wishes: OfferFilter, catalogue: str | None = None, sort: str = "price", limit: int | None = None
    ) -> OfferList:
        from trainmaster.api.remote.asking import offers_of

        asks = {each.name: getattr(wishes, each.name) for each in fields(wishes)}
        asks |= {"instance": asks.pop("instances"), "catalogue": catalogue, "sort": sort, "limit": limit}
        return offers_of(self._to.get("/offers", **asks, refused=True))

    def refresh_prices(self, region: str | None) -> dict[str, int]:
        return dict(self._to.post("/offers/refresh", {"region": region}, repeats=True)["prices"])

    def clusters(self) -> list[dict[str, Any]]:
        return list(self._to.get("/clusters")["clusters"])

    def end_clusters(self, ids: Sequence[str] | None) -> Stream[str | list[dict[str, Any]]]:
        def told() -> Generator[str | list[dict[str, Any]]]:
            wanted = None if ids is None else list(ids)
            done = self._to.post("/clusters/end", {"clusters": wanted}, repeats=True)
            yield from done["told"]
            yield done["ended"]

        return Listening(told())

    # --- volumes -----------------------------------------------------------------------------------

    def volumes(self) -> list[str]:
        return [str(each["volume"]) for each in self._to.get("/volumes")["volumes"]]

    def volume(self, url: str) -> VolumeInfo:
        from trainmaster.api.remote.volumes import info_of

        return info_of(self._to.get(f"/volumes/{quote(url)}"))

    def remove_volume(self, url: str, *, whole: bool = False) -> RemovedVolume:
        from trainmaster.service.volumes.stored import RemovedVolume

        name, _, version = url.partition("@")
        if version and not version.isdecimal():
            raise UsageError(f"{url} is no version of a volume", f"Write such as {name}@3.")
        if not version and not whole:
            return RemovedVolume(name, name, None)
        wanted = {"version": version or None, "whole": whole and not version}
        self._to.ask("DELETE", f"/volumes/{quote(name)}", wanted)
        return RemovedVolume(name, url, int(version) if version else "all")


class FetchedModel(Model):
    """A model that is fetched from a server."""

    __slots__ = ("_client",)
    _client: RemoteClient

    @classmethod
    def of(cls, client: RemoteClient, model: Model) -> FetchedModel:
        """That of a server's answer."""
        made = cls(*(getattr(model, name) for name in Model.__slots__))
        object.__setattr__(made, "_client", client)
        return made

    def download(self, directory: str | Path) -> Path:  # type: ignore[override]
        """Fetch its files, and compare their hashes; see `Model.download`."""
        self._client.fetch_model(f"{self.run}/{self.experiment}/{self.task}", Path(directory))
        return Path(directory)
