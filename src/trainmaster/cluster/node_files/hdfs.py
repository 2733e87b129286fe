"""`NodeHdfs`: an HDFS on the nodes of a cluster, and data that its nodes copy into it."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_files.data_wanted import Wanted, require_lendable, with_keys
from trainmaster.cluster.node_files.files import NodeFiles, NodePaths, each
from trainmaster.control.attempt.data_sources import HDFS
from trainmaster.control.attempt.staged_data import note_served, url_of
from trainmaster.control.task.job_context import RelayError, TaskContext
from trainmaster.hdfs.configuration import copies_on
from trainmaster.hdfs.serving import RunningHdfs, served_as_json
from trainmaster.hdfs.watchdog import STATE, write
from trainmaster.objects.delegated_credentials import DelegatedCredentials
from trainmaster.objects.narrowing import TooWideKeysError
from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.spec.plain_json import kept, typed
from trainmaster.transport.base import CommandError

_LOOK_S: Final = 2.0
_ASK_TIMEOUT_S: Final = 60.0
_GONE: Final = 1 << 30


class NodeHdfs:
    """One run's. Threads share it.

    Args:
        ask: has a node's program do something, and gives what it says at last; see `NodeData`.
        files: of nodes.
        paths: here and there.
        credentials: gives nodes keys.
        cluster: given an experiment's name, the nodes of its cluster.
        tell: is told what the user is to know.
    """

    def __init__(
        self,
        ask: Callable[[NodeAccess, Wanted], str],
        files: NodeFiles,
        paths: NodePaths,
        credentials: DelegatedCredentials,
        cluster: Callable[[str], Sequence[NodeAccess]],
        tell: Callable[[str], None],
    ) -> None:
        self._ask = ask
        self._files = files
        self._paths = paths
        self._credentials = credentials
        self._cluster = cluster
        self._tell = tell
        self._guard = threading.Lock()
        self._there = paths.there(paths.home.data_directory(paths.run) / HDFS)
        self._record = paths.home.data_directory(paths.run) / f"{HDFS}.json"
        #: By the id of the machine that its NameNode is on.
        self._served: dict[str, RunningHdfs] = self._read()
        #: Of each HDFS: machines with a daemon of it, how often daemons have ended there, as far as we know,
        #: and URLs that are whole in it.
        self._serving: dict[str, dict[str, NodeAccess]] = {}
        self._ends: dict[str, dict[str, int]] = {}
        self._staged: dict[str, set[str]] = {}
        #: Machines that are gone since all of it was looked at.
        self._gone: dict[str, set[str]] = {}
        #: With what we knew of ends when it began.
        self._of_attempts: dict[str, tuple[str, RunningHdfs, dict[str, int]]] = {}
        self._answered_at_s: dict[str, float] = {}

    def provide(self, attempt: str, nodes: Sequence[NodeAccess], context: TaskContext, name: str) -> None:
        """Have an HDFS on an attempt's nodes, and data in it; see `Site.provide`.

        Raises:
            RelayError: nodes cannot use the store.
            UsageError: there is no Java or Hadoop on a node, nothing to stage, or no room.
            TrainmasterError: a node cannot be reached, or has failed.
        """
        url = url_of(context, name)
        require_lendable([url])
        with self._guard:  # what others wait for here is what they need, too
            here = {node.id: node for node in (*nodes, *self._cluster(context.experiment.name))}
            head = next((here[machine] for machine in self._served if machine in here), nodes[0])
            served = self._served.get(head.id)
            if served is not None:
                self._note_gone(served, here)
            if served is None or not self._is_ready(served, url, nodes):
                served = self._serve(head, list(here.values()), nodes, context, name)
                if url not in self._staged.setdefault(served.id, set()):
                    there = [node for machine, node in here.items() if machine in self._serving[served.id]]
                    self._stage(there, served, url, name)
                    self._staged[served.id].add(url)
            note_served(context, served)
            self._of_attempts[attempt] = (name, served, dict(self._ends.get(served.id, {})))

    def lost(self, attempt: str, nodes: Sequence[NodeAccess]) -> str:
        """Why an attempt could not read what was staged for it, in words; empty if it could."""
        if attempt not in self._of_attempts or not nodes:
            return ""
        name, served, ends_before = self._of_attempts[attempt]
        if served not in self._served.values():
            return f"data.{name}: the HDFS at {served.address} was lost meanwhile"
        self._answered_at_s.pop(served.id, None)
        if not self._answers(nodes[0], served):
            where = f"{served.address}:{served.rpc_port}"
            return f"data.{name}: the NameNode at {where} does not answer {nodes[0].target.shown}"
        ends = self._look_for_ends(served)
        died = ", ".join(node for node, count in ends.items() if count > ends_before.get(node, 0))
        return f"data.{name}: a daemon of the HDFS has died on {died}" if died else ""

    def forget(self, attempt: str) -> None:
        """It is over."""
        self._of_attempts.pop(attempt, None)

    def _note_gone(self, served: RunningHdfs, here: Mapping[str, NodeAccess]) -> None:
        """Where as many machines are gone as a block has copies, what was staged is looked at again."""
        serving, gone = self._serving.get(served.id, {}), self._gone.setdefault(served.id, set())
        gone |= serving.keys() - here.keys()
        if len(gone) >= copies_on(len(serving)):
            self._staged.pop(served.id, None)
            gone.clear()

    def _is_ready(self, served: RunningHdfs, url: str, nodes: Sequence[NodeAccess]) -> bool:
        there = self._serving.get(served.id, {})
        is_whole = url in self._staged.get(served.id, ()) and all(node.id in there for node in nodes)
        return is_whole and self._answers(nodes[0], served)

    def _answers(self, node: NodeAccess, served: RunningHdfs) -> bool:
        """Whether a node can speak with the NameNode; short tasks begin many at a time."""
        now_s = time.monotonic()
        if now_s - self._answered_at_s.get(served.id, -_LOOK_S) < _LOOK_S:
            return True
        tried = f": </dev/tcp/{served.address}/{served.rpc_port}"
        once = f"timeout 5 bash -c {shlex.quote(tried)}"
        command = f"for i in 1 2 3; do {once} && exit 0; sleep 1; done; exit 1"
        try:
            answers = self._files.shell(node, command, _ASK_TIMEOUT_S).code == 0
        except TrainmasterError:
            return False
        if answers:
            self._answered_at_s[served.id] = now_s
        return answers

    def _look_for_ends(self, served: RunningHdfs) -> dict[str, int]:
        """How often daemons have ended so far, by machine; members may have met what runs again by now."""

        def one(node: NodeAccess) -> tuple[str, int]:
            try:
                said = self._files.shell(node, f"cat {shlex.quote(self._there)}/{STATE}", _ASK_TIMEOUT_S).out
                return node.id, sum(int(daemon["ends"]) for daemon in json.loads(said).values())
            except (TrainmasterError, ValueError, LookupError, TypeError, AttributeError):
                return node.id, _GONE  # they are unattended, or the machine is lost

        found = dict(each(list(self._serving.get(served.id, {}).values()), one))
        self._ends.setdefault(served.id, {}).update(found)
        return found

    def _serve(
        self,
        head: NodeAccess,
        all_nodes: Sequence[NodeAccess],
        needed: Sequence[NodeAccess],
        context: TaskContext,
        name: str,
    ) -> RunningHdfs:
        known, copies = self._served.get(head.id), copies_on(len(all_nodes))
        served = self._served_by(head, known, copies, context, name)
        if served != known:
            if known is not None:
                self._tell(f"note: data.{name}: the HDFS on {head.id} was lost, and is made anew")
            # What another machine's NameNode held is not continued.
            self._served = {m: it for m, it in self._served.items() if all(m != n.id for n in all_nodes)}
            self._served[head.id] = served
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write(self._record, {machine: served_as_json(it) for machine, it in self._served.items()})
        must = {node.id for node in needed}

        def one(node: NodeAccess) -> str:
            try:
                self._served_by(node, served, copies, context, name)
            except TrainmasterError as error:
                if node.id in must:
                    raise
                self._tell(f"note: data.{name}: {node.id} has no part of the HDFS: {one_line(error)}")
                return ""
            return node.id

        joined = {head.id, *each([node for node in all_nodes if node.id != head.id], one)}
        self._serving[served.id] = {node.id: node for node in all_nodes if node.id in joined}
        return served

    def _served_by(
        self, node: NodeAccess, served: RunningHdfs | None, copies: int, context: TaskContext, name: str
    ) -> RunningHdfs:
        venv = context.venv
        order = {
            "do": "hdfs",
            "directory": self._there,
            "address": node.address,
            "served": None if served is None else served_as_json(served),
            "copies": copies,
            "hadoop": context.experiment.data[name].hadoop or "",
            "venv": "" if venv is None else self._paths.there(venv),
        }
        said = self._ask(node, Wanted(name, self._there, order))
        try:
            return typed(RunningHdfs, json.loads(said))
        except ValueError as error:
            raise CommandError(f"{node.target.shown}: data.{name}: it says {said[:200]!r}") from error

    def _stage(self, nodes: Sequence[NodeAccess], served: RunningHdfs, url: str, name: str) -> None:
        def wanted(index: int) -> Wanted:
            order: dict[str, Any] = {"do": "stage", "url": url, "web": served.web, "index": index}
            order |= {"directory": self._there, "count": len(nodes), "copies": copies_on(len(nodes))}
            try:
                return with_keys(self._credentials, Wanted(name, self._there, order, (url,)))
            except TooWideKeysError as error:
                raise RelayError(one_line(error)) from error

        orders = {node.id: wanted(index) for index, node in enumerate(nodes)}
        reports = [json.loads(said) for said in each(nodes, lambda node: self._ask(node, orders[node.id]))]
        files, total = sum(report[0] for report in reports), reports[0][2]
        if files != total:
            words = f"data.{name}: {files:,} of {total:,} objects were staged"
            raise CommandError(words, "It is safe to try again.")

    def _read(self) -> dict[str, RunningHdfs]:
        return kept(dict[str, RunningHdfs], self._record) or {}
