"""The one process per node that speaks with its supervisor on behalf of the driver.

The supervisor is no child of it: it and its members outlive the agent and the engine that has started that,
and its journal is the truth. The agent hands over what was asked for and tells what happened. Of each gang
with a part on its node it keeps a record, so that the next driver knows where the others are.

`AgentProgram` serves one driver over its standard input and output, as over an SSH channel: one JSON frame
per call. It ends with its stream, or when its driver has not asked for anything for a while; supervisor and
members go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

from trainmaster.executors.base import Capacity, GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.copies import ANSWER_BYTES, identity, read_pieces
from trainmaster.executors.gangs.life import parts_elsewhere
from trainmaster.executors.gangs.silence import DRIVER_GONE_S
from trainmaster.executors.local.executor import LocalExecutor
from trainmaster.executors.wire import Splitter, encode
from trainmaster.spec.errors import ExecutorError, LeaseLostError, OtherVersionError, TrainmasterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster.executors.gangs.copies import Piece
    from trainmaster.executors.gangs.engine import Follow
    from trainmaster.executors.gangs.life import UnattendedGangs
    from trainmaster.executors.wire import Message

    #: Names of parts by the id and address of their node; what is known of parts by their names.
    Elsewhere = dict[tuple[str, str], list[str]]
    Seen = dict[str, GangStatus | None]

#: The engine counts the slots; the supervisor never makes a gang wait.
_ANY_SLOTS = 1 << 30
_LOOK_S = 1.0
#: What a member prints wakes a poll; its metrics are read as often as a driver looks at them.
_FOLLOW_S = 0.5
#: While gangs queue here, news go out at most this often.
_GATHER_S = 0.03


class Agent:
    """Speaks JSON with a driver, of which ``token`` is the one that is served; called from threads.

    Args:
        node: the supervisor's ``home``, and ids of ``gpus``.
    """

    def __init__(self, node: Mapping[str, Any]) -> None:
        _be_ordinary()
        self._node = node
        self._records = Records(node["home"])
        self._lock = threading.RLock()
        self._news_came = threading.Condition(self._lock)
        self._token = ""
        self._client: LocalExecutor | None = None
        self._news: dict[str, GangStatus] = {}
        self._output: dict[tuple[str, str], None] = {}
        self._followed = frozenset[str]()
        self._queued: set[str] = set()
        self._unrecorded: dict[str, str] = {}
        self._asked_at = time.monotonic()
        self._is_left = False
        self._served = ""
        self._told_at = 0.0
        self._error = ""
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def attach(self, token: str, attempts: Sequence[str], leased: str = "", lease: int = 0) -> list[Any]:
        """Serve this driver from now on; what an earlier one held (but had not started) is dropped.

        Args:
            token: of the driver.
            attempts: parts that it asks for.
            leased: the run of its driver.
            lease: token of that driver's lease; supervisors refuse earlier ones.

        Returns:
            Statuses of the parts that were asked for, and of those that have a record here; the records of
            the gangs that have parts here, see `ConductedGang.record`.
        """
        with self._lock:
            self._detach()
            client = self._open(lease, leased)
            client.output()
            records = self._records.load()
            asked = list(dict.fromkeys([*attempts, *records]))
            statuses = self._drop_waiting(client, asked)
            self._records.drop(
                each.attempt
                for each in statuses
                if each.phase is Phase.UNKNOWN and each.attempt not in attempts
            )
            self._client, self._token, self._error = client, token, ""
            self._served = token
            self._records.serve(token)
            self._is_left = False
            self._asked_at = time.monotonic()
            self._wake()
            rows = [status.row() for status in statuses]
            return [rows, list({each["attempt"]: each for each in records.values()}.values())]

    def _drop_waiting(self, client: LocalExecutor, attempts: list[str]) -> list[GangStatus]:
        """What waits since an earlier driver never starts; the supervisor would drop it too, but later."""
        statuses = client.observe(attempts)
        queued = [each.attempt for each in statuses if each.phase is Phase.QUEUED]
        granted = [each.attempt for each in statuses if each.phase is Phase.GRANTED]
        if not queued and not granted:
            return statuses
        client.send({"do": "recall", "attempts": queued})
        for attempt in granted:
            client.stop(attempt, 0.0)
        return client.observe(attempts)

    def _open(self, lease: int = 0, leased: str = "") -> LocalExecutor:
        client = LocalExecutor(Path(self._node["home"]))
        # The driver decides whose turn it is: to the supervisor all gangs are those of one run.
        client.open("cluster", Capacity(_ANY_SLOTS, tuple(self._node["gpus"])), {}, lease, leased)
        return client

    def detach(self, token: str) -> None:
        """The driver ends."""
        with self._lock:
            if token == self._token:
                self.orphan()

    def orphan(self) -> str:
        """Its driver is gone, or out of reach; the token that it had."""
        with self._lock:
            self._detach()
            self._is_left = True
            return self._served

    def statuses(self, parts: Sequence[str], commands: Sequence[Message] = ()) -> list[Any]:
        """Of parts here, after commands of one that looks after them while no driver is there."""
        with self._lock:
            client = self._client or self._open()
            try:
                for command in commands if self._client is None else ():
                    if command["do"] == "record":
                        self._record(command["part"], command["record"])
                    else:
                        client.send(command)
                return [status.row() for status in client.observe(list(parts))]
            finally:
                if client is not self._client:
                    client.close()

    def tend(self, rules: UnattendedGangs, ask: Callable[[Elsewhere], Seen]) -> bool:
        """Look once after gangs over several nodes, if no driver is there (and none is about to be).

        Args:
            rules: what was found before.
            ask: gives what is known of parts on other nodes; None for those whose nodes are dead.

        Returns:
            Whether there was one that lives.

        Raises:
            Exception: whatever an engine raises: something is out of reach, perhaps not told what follows.
        """
        with self._lock:
            has_left = self._is_left or time.monotonic() - self._asked_at > DRIVER_GONE_S
            records = self._records.load() if self._client is None and has_left else {}
        if not records:
            return False
        here = [GangStatus.of_row(row) for row in self.statuses(list(records))]
        seen = ask(parts_elsewhere(records)) | {each.attempt: each for each in here}
        self.statuses([], rules.orders(records, seen, time.monotonic(), time.time()))
        return rules.lives(records)

    def do(self, token: str, commands: Sequence[Message]) -> list[Any]:
        """Carry out commands in their order.

        Returns:
            For each directory that was probed, whether it is the same one as the driver's; for each attempt
            that was checked, the number that came with it, and its status in between the commands around.
        """
        with self._lock:
            client = self._serving(token)
            shared: dict[str, bool] = {}
            checked: list[tuple[int, list[Any]]] = []
            for command in commands:
                match command["do"]:
                    case "record":  # comes before the parts that it tells of
                        self._record(command["part"], command["record"])
                    case "submit":
                        gangs = [gang for gang in command["gangs"] if not self._is_refused(gang)]
                        self._queued.update(gang["attempt"] for gang in gangs)
                        client.queue(gangs)
                    case "launch" | "stop" | "recall":
                        client.send(command)  # its environment is portable already
                    case "check":
                        (status,) = client.observe([command["attempt"]])
                        checked.append((command["turn"], status.row()))
                    case "forget":
                        for attempt in command["attempts"]:
                            self._queued.discard(attempt)
                            self._unrecorded.pop(attempt, None)
                        client.forget(command["attempts"])
                        self._records.drop(command["attempts"])
                    case "probe":
                        path = command["directory"]
                        shared[path] = identity(path) == command["here"]
            self._wake()
            return [shared, checked]

    def _record(self, part: str, record: Message) -> None:
        """Of a part that runs already the old record stays when there is no room for another."""
        self._unrecorded.pop(part, None)
        try:
            self._records.store(part, record)
        except OSError as error:
            self._unrecorded[part] = f"cannot write {error.filename}: {error.strerror}; make room there"

    def _is_refused(self, gang: Message) -> bool:
        """A part without a record is not started: the next driver would not know whose it is."""
        error = self._unrecorded.pop(gang["attempt"], "")
        if error:
            now = time.time()
            members = tuple(
                MemberStatus(member["name"], ended_at=now, error=error) for member in gang["members"]
            )
            self._news[gang["attempt"]] = GangStatus(gang["attempt"], Phase.EXITED, members, ended_at=now)
            self._news_came.notify_all()
        return bool(error)

    def poll(self, token: str, timeout_s: float, follow: Follow) -> list[Any]:
        """Wait for news; also read on in the files of parts that are followed.

        Returns:
            Statuses of parts that have changed; (part, member) of those that wrote something; pieces of
            files that are followed, with their part; parts of which there is more to read.
        """
        deadline = time.monotonic() + (min(timeout_s, _FOLLOW_S) if follow else timeout_s)
        with self._lock:
            self._serving(token)
            if not self._followed.issuperset(follow):  # what it wrote before has woken an earlier poll
                deadline = 0.0
            self._followed = frozenset(follow)
            self._asked_at = time.monotonic()
            while token == self._token and not self._error:
                now = time.monotonic()
                wait_s = deadline - now
                if self._news or self._output:
                    wait_s = self._told_at + _GATHER_S - now if self._queued else 0.0
                if wait_s <= 0:
                    break
                self._news_came.wait(wait_s)
            self._serving(token)
            self._asked_at = self._told_at = time.monotonic()
            news, self._news = [status.row() for status in self._news.values()], {}
            output, self._output = list(self._output), {}
        pieces: list[tuple[str, Piece]] = []
        behind = []
        left_bytes = ANSWER_BYTES
        for part, (directory, members, have) in follow.items():
            found, more = read_pieces(directory, members, have, left_bytes)
            left_bytes -= sum(count for _, _, count, _ in found)
            pieces += [(part, piece) for piece in found]
            if more:
                behind.append(part)
        return [news, output, pieces, behind]

    def _serving(self, token: str) -> LocalExecutor:
        if token != self._token or self._client is None:
            raise ExecutorError(
                "the agent serves another driver", self._error or "It has been attached to anew."
            )
        return self._client

    def _watch(self) -> None:
        """Take what the supervisor says as soon as it says it."""
        while True:
            poll = select.poll()
            poll.register(self._wake_in, select.POLLIN)
            client = self._client
            if client is not None and (stream := client.connection.fileno()) >= 0:
                poll.register(stream, select.POLLIN)
            if self._queued:
                time.sleep(_GATHER_S / 4)  # waking up for each news takes longer than the news
            poll.poll(int(_LOOK_S * 1000))
            with self._lock:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
                if self._client is None:
                    continue
                if time.monotonic() - self._asked_at > DRIVER_GONE_S:
                    self._detach()
                    continue
                self._take(self._client)

    def _take(self, client: LocalExecutor) -> None:
        told = not self._news and not self._output
        try:
            for status in client.changes(0.0):
                self._news[status.attempt] = status
                self._queued.discard(status.attempt)
            self._output.update(dict.fromkeys(client.output()))
        except (ExecutorError, OSError) as error:  # no supervisor can be started: the driver has to know
            self._detach()
            self._error = str(error)
        if told or self._error or not self._queued:
            self._news_came.notify_all()

    def _detach(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._token = None, ""
        self._news, self._output = {}, {}
        self._queued = set()
        self._news_came.notify_all()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake
            os.write(self._wake_out, b"x")


class Records:
    """What the next driver must know of gangs, in a file for each part on this node.

    They are as safe as the supervisor's journal: nothing is synced. No script and no environment gets there.

    Args:
        home: of the node's supervisor.
    """

    def __init__(self, home: str) -> None:
        self._directory = Path(home) / "gangs"

    def load(self) -> dict[str, Message]:
        """Records by part; damaged ones are left out."""
        found: dict[str, Message] = {}
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                part, record = json.loads(path.read_bytes())
                found[part] = {**record, "attempt": record["attempt"]}
        return found

    def serve(self, token: str) -> None:
        """The driver with this token is served from now on: what looks after gangs for want of one ends."""
        self._note("served", token)

    def served(self) -> str:
        """Token of the driver that was served last; empty if there was none."""
        return self._noted("served")

    def meet(self, node_ids: Sequence[str]) -> None:
        """These nodes have answered this one since its driver came."""
        self._note("met", "\n".join(node_ids))

    def met(self) -> list[str]:
        """Ids of nodes that have answered."""
        return self._noted("met").splitlines()

    def store(self, part: str, record: Message) -> None:
        """Keep it.

        Raises:
            OSError: it cannot be written; an earlier one stays.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(part)
        draft = path.with_suffix(".new")
        try:
            draft.write_text(json.dumps([part, record]))
            draft.replace(path)
        except OSError as error:  # that of a write does not name its file
            draft.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(draft)) from None

    def drop(self, parts: Iterable[str]) -> None:
        """Forget some."""
        for part in parts:
            self._path(part).unlink(missing_ok=True)

    def _note(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._directory / name).write_text(text)

    def _noted(self, name: str) -> str:
        try:
            return (self._directory / name).read_text()
        except OSError:
            return ""

    def _path(self, part: str) -> Path:
        return self._directory / f"{hashlib.sha256(part.encode()).hexdigest()[:32]}.json"


def _be_ordinary() -> None:
    """The supervisor is started from here, and members inherit from it: undo what was set for this process.

    An engine may have its workers killed first when memory is short.
    """
    with contextlib.suppress(OSError):  # the kernel does not let us
        Path("/proc/self/oom_score_adj").write_text("0")


_THREADS = 4
_LAST_S = 0.1
_READ_BYTES = 1 << 20


class AgentProgram:
    """Answers calls from threads: one waits for news while others hand over commands.

    Args:
        agent: whose methods are called.
        threads: most calls at a time.
        output: file descriptor that the answers go to.
    """

    def __init__(self, agent: object, threads: int = _THREADS, output: int = 1) -> None:
        self._agent = agent
        self._output = output
        self._threads = threads  # to be started; `concurrent.futures` imports more than all of ours
        self._idle = threading.Semaphore(0)
        self._calls: SimpleQueue[Message] = SimpleQueue()
        self._lock = threading.Lock()

    def serve(self, afterwards: Callable[[], None] = lambda: None) -> None:
        """Until standard input ends; then what is left to do is done, and this process ends."""
        splitter = Splitter()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        heard_at = time.monotonic()
        while time.monotonic() - heard_at < DRIVER_GONE_S:
            if not poll.poll(int(DRIVER_GONE_S * 1000)):
                break
            try:
                data = os.read(0, _READ_BYTES)
            except OSError:  # the connection was reset
                data = b""
            if not data:
                break
            heard_at = time.monotonic()
            for call in splitter.feed(data):
                self.hand_over(call)
        time.sleep(_LAST_S)  # what came last is still done
        afterwards()
        os._exit(0)  # a thread may wait for news

    def hand_over(self, call: Message) -> None:
        """Have a thread answer a call: one that has nothing to do, or another."""
        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and self._threads:
            self._threads -= 1
            threading.Thread(target=self._answer_calls, daemon=True).start()

    def _answer_calls(self) -> None:
        while True:
            self._answer(self._calls.get())
            self._idle.release()

    def _answer(self, call: Message) -> None:
        try:
            found: Message = {"result": getattr(self._agent, call["do"])(*call["args"])}
        except LeaseLostError as error:
            found = {"error": [Exception.__str__(error), error.hint], "fenced": True}
        except OtherVersionError as error:
            found = {"error": [Exception.__str__(error), error.hint], "other_version": True}
        except TrainmasterError as error:
            found = {"error": [Exception.__str__(error), error.hint]}
        except Exception as error:  # noqa: BLE001 - told to the driver
            found = {"error": [f"{type(error).__name__}: {error}", ""]}
        view = memoryview(encode({"id": call["id"], **found}))
        with self._lock, contextlib.suppress(OSError):  # nobody listens any more
            while view:
                view = view[os.write(self._output, view) :]
