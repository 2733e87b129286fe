"""The program on a node and the driver's end of it: orders go there, what is found or wrong comes back."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster.artifacts import UnstableDirectory
from trainmaster.artifacts.sending import ToSend
from trainmaster.cluster.node_files.files import NodeFiles
from trainmaster.cluster.node_files.trees import FILE, TreeEntry, scan
from trainmaster.cluster.node_files.worker import _lent
from trainmaster.cluster.node_files.worker_client import NodeWorker, OrderError, StoreRefusedError
from trainmaster.objects.errors import StoreTrouble
from trainmaster.spec.errors import UsageError
from trainmaster.transport.base import ConnectionLostError, RemoteTimeoutError, Result, Target
from trainmaster.transport.local import LocalConnection


class Node:
    """This machine as a node, or a script in its place."""

    def __init__(self, root: Path, command: str = "") -> None:
        self.id, self.seat, self.root = "i-1", "worker-0", str(root)
        self.target, self.python = Target("n1", "10.0.0.5"), sys.executable
        self.commands: list[str] = []
        self._command = command

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        node = self

        class Connection(LocalConnection):
            def stream(self, command: str) -> socket.socket:
                node.commands.append(command)
                return super().stream(node._command or command)

        with Connection(self.target) as connection:
            yield connection

    def connect(self) -> Any:
        return LocalConnection(self.target)


def worker(access: Any) -> NodeWorker:
    return NodeWorker(NodeFiles().links, access)


def test_files_are_looked_at_frozen_sent_and_thawed_by_one_program(tmp_path: Path) -> None:
    there = tmp_path / "c"
    there.mkdir()
    (there / "a").write_text("1")
    node: Any = Node(tmp_path)
    frozen, uri = str(tmp_path / ".c.frozen"), f"file://{tmp_path}/store"
    with worker(node) as ours:
        tree, is_placed = ours.look(str(there))
        assert ([entry.path for entry in tree], is_placed) == (["a"], True)
        assert ours.look(str(tmp_path / "none")) == ([], True)
        assert ours.look(str(tmp_path / "none/x")) == ([], False)
        assert ours.freeze(str(there), frozen, ["a"]) == tree
        (there / "a").unlink()
        (there / "a").write_text("later")
        (entry,) = tree
        to_send = ToSend("a", f"{frozen}/a", entry.size, entry.mtime_ns, entry.inode, entry.mode)
        (sent,) = ours.send(uri, "files-1", str(tmp_path / "journal"), [to_send], {"SECRET": "hunter22"})
        assert (sent.path, sent.object) == ("a", "files-1/a")
        assert (tmp_path / "store/files-1/a").read_text() == "1"
        gone = to_send._replace(path="b", place=f"{frozen}/b")
        with pytest.raises(UnstableDirectory, match=r"n1 .*vanished"):
            ours.send(uri, "files-2", str(tmp_path / "journal"), [gone], {})
        assert ours.thaw(frozen) == tree
        assert not Path(frozen).exists()
    assert len(node.commands) == 1
    assert "hunter22" not in node.commands[0]


def test_credentials_hold_for_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEFORE", "1")
    with _lent({"AWS_SECRET_ACCESS_KEY": "x", "BEFORE": "2"}):
        assert (os.environ["AWS_SECRET_ACCESS_KEY"], os.environ["BEFORE"]) == ("x", "2")
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ
    assert os.environ["BEFORE"] == "1"


def test_files_come_here_piece_by_piece(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/a").write_bytes(b"x" * 600_000)
    found: list[bytes] = []
    with worker(Node(tmp_path)) as ours:
        tree, _ = ours.look(str(tmp_path / "c"))
        ours.carry(str(tmp_path / "c"), tree, found.append)
    assert len(found) > 1
    assert b"".join(found).count(b"x") == 600_000
    assert b"".join(found).endswith(b"+null\n")


def test_a_directory_is_pushed_whole_and_once(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "root/data/x"
    here.mkdir()
    (here / "a").write_text("1")
    (here / "b").write_text("22")
    node: Any = Node(tmp_path / "root")
    files = NodeFiles()
    files.push(node, here, str(there), is_shared=True)
    assert (there / "b").read_text() == "22"
    inode = (there / "a").stat().st_ino
    (here / "b").write_text("333")
    files.push(node, here, str(there))
    assert ((there / "b").read_text(), (there / "a").stat().st_ino) == ("333", inode)
    begun = len(node.commands)
    files.push(node, here, str(there), is_shared=True)
    NodeFiles().push(node, here, str(there), is_shared=True)  # another driver finds the stamp
    files.push(node, here, str(there), is_shared=True)  # and this one asks nobody
    assert len(node.commands) == begun + 2
    assert sorted(entry.name for entry in there.parent.iterdir()) == [".x.stamp", "x"]


def test_what_arrives_only_in_part_changes_nothing(tmp_path: Path) -> None:
    there = tmp_path / "root/x"
    stream = [b'["b", "f", 3, 7]\n', b"abc+", b"null\n"]
    with pytest.raises(OrderError, match="came unasked"), worker(Node(tmp_path / "root")) as ours:
        ours.push(str(there), [TreeEntry("a", FILE, 3, 7)], lambda _: (3, stream), is_shared=False)
    assert not there.exists()


def test_a_full_disk_is_the_users_to_mend(tmp_path: Path) -> None:
    said = '{"error": "OSError", "words": "no room", "trouble": "full"}'
    node: Any = Node(tmp_path, f"read x; echo '{said}'")
    with pytest.raises(UsageError, match="no room"), worker(node) as ours:
        ours.make(["/x"])


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with worker(Node(tmp_path)) as ours:
        with pytest.raises(OrderError, match=r"n1 .*Not a directory"):
            ours.look(str(tmp_path / "file"))
        assert ours.look(str(tmp_path))[0] == scan(str(tmp_path)), "it goes on"


def refusal(access: Any, directory: str = "/x") -> StoreRefusedError:
    with pytest.raises(StoreRefusedError) as raised, worker(access) as ours:
        ours.restore("file:///no/such/store", directory, {})
    return raised.value


def test_a_node_says_of_what_kind_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal(Node(tmp_path), f"{tmp_path}/file/x/y")
    assert (error.node, error.trouble) == ("i-1", StoreTrouble.REFUSED)
    assert str(error).startswith("n1 (10.0.0.5): Not a directory")


@pytest.mark.parametrize(
    ("more", "trouble"),
    [
        (', "trouble": "unreachable"', StoreTrouble.UNREACHABLE),
        (', "trouble": ["later"]', StoreTrouble.OTHER),
        ("", StoreTrouble.OTHER),
    ],
)
def test_an_answer_may_say_nothing_of_it(tmp_path: Path, more: str, trouble: StoreTrouble) -> None:
    said = f"""read x; echo noise; echo '{{"error": "PublishError", "words": "no"{more}}}'"""
    assert refusal(Node(tmp_path, said)).trouble is trouble


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("read x; echo 0; echo killed", "killed"),
        ("read x", "our program there has ended"),
        ("read x; echo '{\"bytes\": -1}'", "the files did not arrive whole"),
        ("exec no-such-python 2>&1", "not found"),
    ],
)
def test_a_program_that_ends_without_an_answer(tmp_path: Path, script: str, words: str) -> None:
    error = refusal(Node(tmp_path, script))
    assert words in str(error)
    assert error.trouble is StoreTrouble.OTHER


@pytest.mark.parametrize(
    ("why", "told"),
    [("gone", "the connection was lost (gone)"), ("the connection was lost (closed)",) * 2],
)
def test_a_connection_that_is_lost_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, told: str
) -> None:
    node = Node(tmp_path, "read x")

    def lost(*_: object, **__: object) -> Result:
        raise ConnectionLostError(f"{node.target.shown}: {why}")

    monkeypatch.setattr(LocalConnection, "run", lost)
    with pytest.raises(ConnectionLostError) as error, worker(node) as ours:
        ours.look("/x")
    assert str(error.value) == f"{node.target.shown}: {told}"


def test_a_node_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.cluster.node_files.worker_client._LOOK_S", 0.1)
    node: Any = Node(tmp_path, "read x; exec sleep 60")
    with pytest.raises(RemoteTimeoutError, match=r"not done after 0\.1 s: look"), worker(node) as ours:
        ours.look("/x")


def test_threads_take_turns(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    found: dict[str, list[str]] = {}

    def look(ours: NodeWorker, name: str) -> None:
        found[name] = [entry.path for entry in ours.look(str(tmp_path / name))[0]]

    with worker(Node(tmp_path)) as ours:
        threads = [threading.Thread(target=look, args=(ours, name)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {name: [name] for name in "abc"}
