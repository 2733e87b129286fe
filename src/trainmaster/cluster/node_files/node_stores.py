"""`NodeStores`: nodes use an object store themselves, with credentials that only connections see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.artifacts import UnstableDirectory
from trainmaster.artifacts.sending import ToSend, listed_entry
from trainmaster.cluster.bootstrap.guest_calls import ask_guest
from trainmaster.cluster.node_links import NodeLinks
from trainmaster.objects.errors import known_trouble
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.artifacts import FileEntry
    from trainmaster.cluster.node_access import NodeAccess

#: For one question to the store; one that is out of reach would be waited for much longer.
REACH_S: Final = 15.0
#: Python, and our libraries, on a node that is busy.
_START_S: Final = 60.0
_MOVE_TIMEOUT_S: Final = 1800.0
#: So slow may a store be; a connection to the node that is dead is found out by other means.
_SLOWEST_BYTES_PER_S: Final = 250_000
_ANSWER_BYTES: Final = 1 << 28
_MARK: Final = "@@stores"


class StoreRefusedError(TrainmasterError):
    """A node cannot use the store, or not any more.

    Attributes:
        node: its machine's id.
        trouble: of what kind that is; programs of earlier versions do not say.
    """

    def __init__(self, access: NodeAccess, message: str, trouble: str = "") -> None:
        super().__init__(f"{access.target.shown}: {message}")
        self.node = access.id
        self.trouble = known_trouble(trouble)


class NodeStores:
    """Threads share it.

    Args:
        links: connections are made, and known, there.
    """

    def __init__(self, links: NodeLinks) -> None:
        self._links = links

    def reach(self, access: NodeAccess, uri: str, credentials: Mapping[str, str]) -> None:
        """See that a node can use the store.

        Args:
            access: the node.
            uri: of anything there.
            credentials: see `store_environment`.

        Raises:
            StoreRefusedError: it cannot.
            ProviderError: the node cannot be reached.
        """
        self._ask(access, {"do": "reach", "uri": uri, "limit_s": REACH_S}, credentials, REACH_S + _START_S)

    def send(
        self,
        access: NodeAccess,
        uri: str,
        folder: str,
        journal: str,
        files: Sequence[ToSend],
        credentials: Mapping[str, str],
    ) -> list[FileEntry]:
        """Have a node upload files to where an artifact will be; what it sent before a cut is not sent again.

        Args:
            access: the node.
            uri: of the artifact.
            folder: for this part alone.
            journal: a file there.
            files: there.
            credentials: see `store_environment`.

        Raises:
            UnstableDirectory: a file is no longer as it was seen.
            StoreRefusedError: the node cannot read a file, or not use the store.
            ProviderError: the node cannot be reached.
        """
        order = {"do": "send", "uri": uri, "folder": folder, "journal": journal, "files": files}
        size_bytes = sum(file.size_bytes for file in files)
        said = self._ask(access, order, credentials, _MOVE_TIMEOUT_S + size_bytes / _SLOWEST_BYTES_PER_S)
        try:
            entries = [listed_entry(each) for each in said]
        except ValueError as error:
            raise StoreRefusedError(access, str(error)) from error
        # What a node says is named in a manifest: nothing but what it was asked for.
        asked = {file.path: file.size_bytes for file in files}
        if {entry.path: entry.size_bytes for entry in entries} != asked or any(
            not entry.object.startswith(f"{folder}/") for entry in entries
        ):
            raise StoreRefusedError(access, "it has sent something else than it was asked for")
        return entries

    def restore(self, access: NodeAccess, uri: str, directory: str, credentials: Mapping[str, str]) -> None:
        """Have a node make a directory what an artifact is.

        Raises:
            StoreRefusedError: it cannot.
            ProviderError: the node cannot be reached.
        """
        order = {"do": "restore", "uri": uri, "directory": directory}
        self._ask(access, order, credentials, 12 * _MOVE_TIMEOUT_S)

    def _ask(
        self, access: NodeAccess, order: dict[str, Any], credentials: Mapping[str, str], timeout_s: float
    ) -> list[Any]:
        said = bytearray()

        def keep(data: bytes) -> None:
            said.extend(data[: max(0, _ANSWER_BYTES - len(said))])

        order = {**order, "environment": dict(credentials)}
        with self._links.own(access) as connection:
            result = ask_guest(
                connection, access.python, "stores.py", order, timeout_s, sink=keep, needs_packages=True
            )
        lines = said.decode(errors="replace").partition(f"{_MARK}\n")[2].splitlines()
        try:
            answers = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            answers = []
        last = answers[-1] if answers else 0
        if answers and last is None and result.code == 0:
            return [answer for answer in answers[:-1] if answer != 0]
        if not isinstance(last, dict):
            raise StoreRefusedError(access, result.last_words)
        words = str(last.get("words", ""))
        if last.get("error") == UnstableDirectory.__name__:
            raise UnstableDirectory(f"{access.target.shown}: {words}", "Nothing was published; try later.")
        raise StoreRefusedError(access, words, str(last.get("trouble", "")))
