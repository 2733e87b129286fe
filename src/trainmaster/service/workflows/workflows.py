"""`Workflows`: recipes that a server keeps, with what starts them and what became of each start."""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.checks.inputs import missing_script_notes
from trainmaster.db import workflow_rows as rows
from trainmaster.db.queries import AT_ONCE
from trainmaster.db.row_values import columns
from trainmaster.objects import ObjectStore
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.driving.replicas import why_bound_of
from trainmaster.service.driving.submissions import MAX_KEY, RunRequest, Submissions
from trainmaster.service.notifications.webhooks import new_secret, signature
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.teams.team_volumes import volumes_url
from trainmaster.service.users.caller import NO_TEAM, Caller, UnknownCallerError
from trainmaster.service.workflows.decisions import loop_at
from trainmaster.service.workflows.triggers import registrants
from trainmaster.spec.errors import NotFoundError, StoreError, TrainmasterError, UsageError, one_line
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.states import State
from trainmaster.spec.trigger import Trigger, pushed_volumes
from trainmaster.volumes.packed.head import head_numbers, newest_version

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database
    from trainmaster.service.service import Service
    from trainmaster.spec import Recipe

#: Of a start that somebody asks for.
BY_HAND: Final = "by hand"
WEBHOOK: Final = "webhook"
#: A signed message that says that it is older, or from later, is refused.
TOLERANCE_S: Final = 300.0
SHOWN: Final = 50
NEXT_TIMES: Final = 3
MOST_WORKFLOWS: Final = 200

log = logging.getLogger(__name__)


class Workflows:
    """The workflows of a home's teams, as a caller may.

    Args:
        service: of the home.
        submissions: takes their runs.
        environ: of the server.
        caller: who asks.
        wake: called when there may be something to start.
    """

    def __init__(
        self,
        service: Service,
        submissions: Submissions,
        environ: Mapping[str, str],
        caller: Caller,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._service = service
        self._database = service.database
        self._submissions = submissions
        self._environ = environ
        self._caller = caller
        self._wake = wake

    # --- changing -----------------------------------------------------------------------------------

    def keep(
        self, request: RunRequest, *, starts_now: bool = False, keeps_secret: bool = True
    ) -> dict[str, Any]:
        """Keep a recipe and start runs of it from now on; one of that name gets a new revision.

        Args:
            request: what is submitted at each start, for as long as the caller may run in the team.
            starts_now: start one at once, too.
            keeps_secret: False: its webhook gets a new secret; who knows the one before starts nothing more.

        Returns:
            As `show`, with ``new``, ``replaced`` (``revision``, ``registered_by`` and ``state`` of what was
            there, or None), and the ``secret`` of its webhook if that is new: it is shown once.

        Raises:
            RecipeError: with all mistakes.
            UsageError: it cannot run, nothing starts it, it would start itself, or there are too many.
        """
        self._caller.need("run")
        self._caller.need_no_wallet("a workflow")
        recipe = self._submissions.read(self._caller, request)
        if not recipe.on:
            raise UsageError(
                f"{recipe.name} has no `on`: nothing would start it", "POST /api/v1/runs runs it once."
            )
        agreed = request.agreed_usd_per_hour  # of several places a plan may have been for one that is free
        places = named_places(recipe)
        is_agreed = bool(agreed) if len(places) > 1 else agreed is not None
        costly = [each for each in places if capabilities_of(each).costs]
        if costly and request.max_usd is None and not is_agreed:
            raise UsageError(
                f"each start rents machines of {' or '.join(costly)}, which was not agreed to",
                'Say what each run may cost at most: `"max_usd": 20`. Or name one place (`--provider`).',
            )
        list(missing_script_notes(recipe, self._service.home.nothing_sent))  # those of each start are its own
        team, now = self._caller.team or "", self._database.clock_s()
        pushes = pushed_volumes(experiment.command for experiment in recipe.experiments.values())
        self._check_loop(team, recipe, pushes)
        before = rows.named(self._database, team, recipe.name)
        if before is None and len(rows.of_teams(self._database, [team])) >= MOST_WORKFLOWS:
            raise UsageError(
                f"there are {MOST_WORKFLOWS} workflows", "Remove one: DELETE /api/v1/workflows/NAME."
            )
        name = f"wf-{secrets.token_hex(8)}" if before is None else str(before["id"])
        secret = new_secret() if any(each.webhook for each in recipe.on) else None
        row = {
            "id": name,
            "team": team,
            "name": recipe.name,
            "request": json.dumps(asdict(request)),
            "concurrency": recipe.concurrency,
            "pushes": json.dumps(pushes),
            "state": rows.ENABLED,
            "revision": 1,
            "registered_by": self._caller.name,
            "account": self._caller.account,
            "token": self._caller.token,
            "secret": None if secret is None else self._key().seal(secret.encode(), f"workflow/{name}"),
            "created_at": now,
            "changed_at": now,
        }
        triggers = [self._trigger(team, at, each, now) for at, each in enumerate(recipe.on)]
        if rows.put(self._database, row, triggers, keeps_secret=keeps_secret) != name:
            raise UsageError(
                f"{recipe.name} was registered by somebody else just now", "Look at it, then decide."
            )
        if starts_now:
            self._fire_by_hand(name, AT_ONCE + secrets.token_hex(8))
        is_new_secret = secret is not None and (
            not keeps_secret or before is None or before["secret"] is None
        )
        told = ("revision", "registered_by", "state")
        replaced = None if before is None else {key: before[key] for key in told}
        found = {**self.show(recipe.name), "new": before is None, "replaced": replaced}
        return {**found, "secret": secret} if is_new_secret else found

    def pause(self, name: str) -> dict[str, Any]:
        """Start nothing until `resume`: what comes meanwhile starts nothing later either."""
        self._caller.need("run")
        row = self._row(name)
        rows.change_state(self._database, row["id"], rows.PAUSED, self._database.clock_s())
        return self.show(name)

    def resume(self, name: str, *, take_over: bool = False) -> dict[str, Any]:
        """Go on, with what comes from now on.

        Args:
            name: of it.
            take_over: its runs are started in the caller's name from now on, with what was agreed to; as if
                it was registered again. What was somebody else's gets a new ``secret`` of its webhook, shown
                this once: whoever leaves knows the one before.

        Raises:
            UsageError: who has registered it may not run it any more, and it is not taken over.
        """
        self._caller.need("run")
        self._caller.need_no_wallet("a workflow")
        row, now = self._row(name) if take_over else self._able(name), self._database.clock_s()
        if row["state"] == rows.PAUSED:
            for found in rows.triggers(self._database, [row["id"]])[row["id"]]:
                trigger = Trigger.model_validate_json(found["data"])
                seen = self._present(row["team"], trigger, now)
                rows.pass_over(self._database, row["id"], found["key"], seen)
            if not take_over:
                rows.change_state(self._database, row["id"], rows.ENABLED, now)
        if take_over:
            is_own = row["registered_by"] == self._caller.name
            return self.keep(RunRequest(**json.loads(row["request"])), keeps_secret=is_own)
        return self.show(name)

    def remove(self, name: str) -> None:
        """Forget it and its history; its runs stay."""
        self._caller.need("run")
        rows.remove(self._database, self._row(name)["id"])

    def trigger(self, name: str, key: str = "") -> dict[str, Any]:
        """Start a run by hand; the same key starts one only.

        Raises:
            UsageError: the key is too long, or who has registered it may not run it any more.
        """
        self._caller.need("run")
        self._caller.need_no_wallet("a workflow")
        if len(key) > MAX_KEY:
            raise UsageError(f"a key of {len(key)} characters", f"Use at most {MAX_KEY}: a UUID will do.")
        self._fire_by_hand(self._able(name)["id"], key or secrets.token_hex(8))
        return self.show(name)

    def rotate(self, name: str) -> dict[str, Any]:
        """A new ``secret`` of its webhook, shown this once; the one before is good no more.

        Raises:
            UsageError: it has no webhook.
        """
        self._caller.need("run")
        row = self._row(name)
        if row["secret"] is None:
            raise UsageError(f"{name} has no webhook", "Write `on: webhook`, or a list with it.")
        secret = new_secret()
        rows.change_secret(
            self._database, row["id"], self._key().seal(secret.encode(), f"workflow/{row['id']}")
        )
        return {**self.show(name), "secret": secret}

    def receive(self, workflow: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """A message to its webhook, signed as Standard Webhooks has it, or with the secret as a bearer token.

        Args:
            workflow: its id.
            headers: of the request; their names are small.
            body: as it came.

        Returns:
            ``workflow``, ``team``, ``id`` (of the message), and whether it ``starts`` a run: not one that
            came before, nor while the workflow is paused.

        Raises:
            UnknownCallerError: there is no such webhook, or the signature is wrong or old.
            StoreError: the secret cannot be opened with the key of this server.
        """
        row = rows.find(self._database, workflow)
        triggers = [] if row is None else rows.triggers(self._database, [workflow])[workflow]
        if row is None or row["secret"] is None or not any(each["key"] == WEBHOOK for each in triggers):
            raise _unknown()
        try:
            secret = self._key().open(row["secret"], f"workflow/{workflow}").decode()
        except TrainmasterError as error:  # what is wrong here is not shown to unknown callers
            log.warning("the webhook of %s cannot be checked: %s", row["name"], one_line(error))
            raise StoreError(
                "this server cannot check that now", "Its log says why; send it again."
            ) from None
        name = _checked(secret, headers, body, self._database.clock_s()) or secrets.token_hex(8)
        if len(name) > MAX_KEY:
            raise UsageError(f"a webhook-id of {len(name)} characters", f"Use at most {MAX_KEY}.")
        told = {"workflow": row["name"], "team": row["team"] or None, "id": name}
        if row["state"] != rows.ENABLED:
            return {**told, "starts": False}
        fired = rows.fire(self._database, workflow, rows.Cause(WEBHOOK, name), self._database.clock_s())
        self._wake()
        return {**told, "starts": fired}

    # --- looking ------------------------------------------------------------------------------------

    def listed(self) -> list[dict[str, Any]]:
        """Those that a caller sees, by team and name: what `show` has, but for recipe and history."""
        self._caller.need("read")
        found = rows.of_teams(self._database, None if self._caller.sees_all else [self._team()])
        ids = [row["id"] for row in found]
        triggers, last = rows.triggers(self._database, ids), rows.last_starts(self._database, ids)
        before = self._before([each for each in last.values() if each["state"] == rows.WAITING])
        return [self._about(row, triggers[row["id"]], last.get(row["id"]), before) for row in found]

    def show(self, name: str) -> dict[str, Any]:
        """One of them.

        Returns:
            ``workflow``, ``team``, ``state`` (``ENABLED`` or ``PAUSED``), ``revision``, ``concurrency``,
            ``on`` (each ``trigger`` with ``seen``, the newest version or time that was looked at, and
            ``next`` times), ``registered_by``, ``created_at``, ``changed_at``, ``good_until`` (when the token
            ends that has registered it, or None), ``code``, ``hook`` (path of its webhook), ``last`` (its
            newest start), ``under_way`` (runs), ``recipe``, ``history`` (starts, the newest first: ``start``,
            ``trigger``, ``cause``, ``at``, ``state``, ``run``, ``run_state``, ``run_reason``, ``message``).

        Raises:
            NotFoundError: the caller's team has none of that name.
        """
        self._caller.need("read")
        row = self._row(name)
        history = rows.history(self._database, row["id"], SHOWN)
        triggers = rows.triggers(self._database, [row["id"]])[row["id"]]
        before = self._before([each for each in history if each["state"] == rows.WAITING])
        return {
            **self._about(row, triggers, history[0] if history else None, before),
            "under_way": rows.under_way(self._database, [row["id"]]).get(row["id"], []),
            "recipe": json.loads(row["request"])["recipe"],
            "history": [_start(each, before) for each in history],
        }

    # --- parts --------------------------------------------------------------------------------------

    def _row(self, name: str) -> RowMapping:
        row = rows.named(self._database, self._team(), name)
        if row is None:
            raise NotFoundError(f"there is no workflow {name[:100]!r}", "`trainmaster workflows` lists them.")
        return row

    def _before(self, waiting: Sequence[RowMapping]) -> dict[str, str]:
        """What starts wait for, by workflow: none of those that wait for a time only."""
        runs = rows.under_way(self._database, {each["workflow_id"] for each in waiting}) if waiting else {}
        return {name: _why_waiting(self._database, found[0]) for name, found in runs.items()}

    def _about(
        self, row: RowMapping, triggers: list[RowMapping], last: RowMapping | None, before: Mapping[str, str]
    ) -> dict[str, Any]:
        request, now = json.loads(row["request"]), self._database.clock_s()
        on = []
        for each in triggers:
            trigger = Trigger.model_validate_json(each["data"])
            is_on = row["state"] == rows.ENABLED
            times = trigger.next_times(max(now, each["seen"]), NEXT_TIMES) if is_on else []
            on.append({"trigger": each["key"], "seen": each["seen"] or None, "next": times})
        return {
            "workflow": row["name"],
            "team": row["team"] or None,
            **columns(row, "state", "revision", "concurrency"),
            "on": on,
            **columns(row, "registered_by", "created_at", "changed_at", "good_until"),
            "code": request["code"],
            "hook": f"/api/v1/hooks/{row['id']}" if any(t["key"] == WEBHOOK for t in triggers) else None,
            "last": None if last is None else _start(last, before),
        }

    def _check_loop(self, team: str, recipe: Recipe, pushes: list[str]) -> None:
        found = rows.of_teams(self._database, [team])
        triggers = rows.triggers(self._database, [row["id"] for row in found])
        others = {
            row["name"]: (
                {each["key"].removeprefix("volume ") for each in triggers[row["id"]]},
                set(json.loads(row["pushes"])),
            )
            for row in found
        }
        reads = {each.volume for each in recipe.on if each.volume is not None}
        if loop := loop_at(recipe.name, reads, pushes, others):
            raise UsageError(
                f"a loop: {' -> '.join(loop)}: a command pushes the volume that starts the next one",
                "Push another volume, or start it by a schedule.",
            )

    def _trigger(self, team: str, ordinal: int, trigger: Trigger, now: float) -> dict[str, Any]:
        return {
            "key": trigger.key,
            "ordinal": ordinal,
            "data": trigger.model_dump_json(),
            "seen": self._present(team, trigger, now),
        }

    def _present(self, team: str, trigger: Trigger, now: float) -> float:
        """What a trigger has seen that looks from now on."""
        if trigger.volume is None:
            return now if trigger.schedule is not None else 0.0
        store = ObjectStore(f"{volumes_url(self._service.home, team or None)}/{trigger.volume}")
        return float(newest_version(store, head_numbers(store)[0]))

    def _able(self, name: str) -> RowMapping:
        """The row of one whose registrant may still start runs.

        Raises:
            UsageError: that one may not.
        """
        row = self._row(name)
        (who,) = registrants(self._database, [row])
        if isinstance(who, str):
            hint = (
                "*Change it* on its page does that. So does `trainmaster run RECIPE`. Unchanged it goes on "
                f"by *Go on in my name*, or `trainmaster workflows resume {name} --take-over`."
            )
            raise UsageError(f"{name} may start nothing: {who}", hint)
        return row

    def _fire_by_hand(self, workflow: str, key: str) -> None:
        rows.fire(self._database, workflow, rows.Cause(BY_HAND, key), self._database.clock_s())
        self._wake()

    def _key(self) -> SealingKey:
        return SealingKey.of(self._service.home.root, self._environ)

    def _team(self) -> str:
        """Whose workflows the caller means."""
        if self._caller.team == NO_TEAM:
            raise NotFoundError(
                "who is in no team has no workflows", "Ask a manager of a team for an invite."
            )
        return self._caller.team or ""


def _checked(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The id of a message whose sender knows the secret; empty if it has none.

    Raises:
        UnknownCallerError: the sender does not, or the message is old.
    """
    name = headers.get("webhook-id", "")
    if signed := headers.get("webhook-signature"):
        stamp = headers.get("webhook-timestamp", "")
        if not name or not re.fullmatch(r"\d{1,12}", stamp) or abs(now - int(stamp)) > TOLERANCE_S:
            raise UnknownCallerError(
                "webhook-id or webhook-timestamp is missing, or the time is not now",
                "Sign each message when it is sent, as Standard Webhooks has it.",
            )
        right = signature(secret, name, int(stamp), body)
        if any(hmac.compare_digest(right.encode(), each.encode()) for each in signed.split()):
            return name
        raise _unknown()
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), secret.encode()):
        return name or headers.get("idempotency-key", "")
    raise _unknown()


def _unknown() -> UnknownCallerError:
    return UnknownCallerError(
        "there is no such webhook, or it was not signed with its secret",
        "Sign it as Standard Webhooks has it, or send `Authorization: Bearer SECRET`.",
    )


def _why_waiting(database: Database, run: str) -> str:
    """That a start waits for the end of a run, and who goes on with that if it was left."""
    row = database.run_row(run)
    was_driven = row["lease_owner"] is not None or row["state"] != State.WAITING
    if not was_driven or is_driven(row, database.clock_s()):
        return f"waits for the end of {run}"
    why = why_bound_of(row, is_shared=database.is_shared)
    who = (
        f"only the server of {row['home']} goes on with it or ends it ({why}): start that server again"
        if why
        else "the next server goes on with it within a minute"
    )
    return f"waits for the end of {run}, which no process drives: {who}"


def _start(row: RowMapping, before: Mapping[str, str]) -> dict[str, Any]:
    """As `Workflows.show` has it; one that waits for the end of a run says so."""
    waits = before.get(row["workflow_id"], "") if row["state"] == rows.WAITING else ""
    return {
        "start": row["id"],
        **columns(row, "trigger", "cause", "at", "state"),
        "run": row["run_id"],
        **columns(row, "run_state", "run_reason"),
        "message": "; ".join(filter(None, (row["message"], waits))),
    }
