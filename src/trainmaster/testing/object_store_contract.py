"""What every object store must do: inherit `ObjectStoreContract` and give it a `store`.

See `trainmaster.objects.backend` for what each method means, and `docs/extend/object-store.md`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping

import pytest

from trainmaster.objects.errors import ERRORS, ObjectChangedError, StoreTrouble
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError

MIB = 1 << 20
#: Whatever users call their files, but for what no file may be called.
ODD_NAMES = (
    "plain",
    "a b c/ü&%41",
    "50%/x",
    "=abc/x@y,z+",
    ".hidden",
    "...",
    "what?/#1 (2)",
    "日本/'quoted'",
    "~$[x]{y}!",
)
_WRITERS = 6


class ObjectStoreContract:
    """Inherit it and override `store`; `troubles` too, where faults can be made."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store."""
        raise NotImplementedError("give the contract a store")

    @pytest.fixture
    def troubles(self) -> Mapping[StoreTrouble, ObjectStore]:
        """Stores that are unreachable, refuse, are full or are not there: as many of these as can be made."""
        return {}

    def test_what_is_put_is_there(self, store: ObjectStore) -> None:
        """An object is replaced whole; an empty one is an object, a folder is none."""
        store.put("a/b", b"one, and longer")
        store.put("a/b", memoryview(b"two"))
        store.put("a/c/empty", b"")
        assert store.get("a/b") == b"two"
        assert store.get("a/c/empty") == b""
        assert (store.get("a"), store.get("never"), store.get("a/b/c")) == (None, None, None)
        assert (store.exists("a/b"), store.exists("a"), store.exists("never")) == (True, False, False)

    def test_a_buffer_may_be_used_again_after_a_put(self, store: ObjectStore) -> None:
        """What is stored are the bytes of the moment."""
        buffer = bytearray(b"before")
        store.put("x", memoryview(buffer))
        buffer[:] = b"after!"
        assert store.get("x") == b"before"

    def test_what_is_too_large_is_not_read(self, store: ObjectStore) -> None:
        """Whoever can write to a store must not fill our memory."""
        store.put("a/small", b"x" * 100)
        assert store.get("a/small", 100) == b"x" * 100
        with pytest.raises(PublishError, match=r"a/small has .* at most 99 are read"):
            store.get("a/small", 99)
        assert store.get("a/none", 1) is None
        assert not store.put_if_absent("a/small", b"x")

    def test_one_of_many_creates(self, store: ObjectStore) -> None:
        """Of several that create an object at once exactly one is told that it has."""
        won: list[int] = []

        def create(number: int) -> None:
            if store.put_if_absent("head", b"%d" % number):
                won.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(_WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.get("head") == b"%d" % won[0]
        assert store.put_if_absent("head", b"%d" % won[0]), "its own answer may have been lost"
        assert not store.put_if_absent("head", b"another")
        assert [key for key, _ in store.list()] == ["head"], "nothing is left of those that lost"

    def test_listing(self, store: ObjectStore) -> None:
        """A prefix is a folder, and no other folder whose name begins so."""
        for key in ("run-1/x", "run-1/d/y", "run-10/x", "top"):
            store.put(key, key.encode())
        assert sorted(store.list()) == [("run-1/d/y", 9), ("run-1/x", 7), ("run-10/x", 8), ("top", 3)]
        assert sorted(store.list("run-1")) == [("run-1/d/y", 9), ("run-1/x", 7)]
        assert list(store.list("run-1/d/y/z")) == list(store.list("never")) == []
        assert (list(store.folders()), list(store.folders("run-1"))) == (["run-1", "run-10"], ["d"])
        assert list(store.folders("never")) == []
        below = ObjectStore(f"{store.url}/run-1")
        assert sorted(below.list()) == [("d/y", 9), ("x", 7)]

    def test_ranges(self, store: ObjectStore) -> None:
        """Less comes if the object ends before."""
        store.put("a/b", b"0123456789")
        assert bytes(store.get_range("a/b", 3, 4)) == b"3456"
        assert bytes(store.get_range("a/b", 8, 4)) == b"89"
        assert b"".join(bytes(block) for block in store.range_blocks("a/b", 2, 5)) == b"23456"

    def test_what_is_not_there(self, store: ObjectStore) -> None:
        """Its absence is no error of the store: only the caller knows what it means."""
        store.put("folder/x", b"1")
        for key in ("never", "folder"):
            assert store.info(key) is None
            with pytest.raises(FileNotFoundError):
                store.get_range(key, 0, 1)
            with pytest.raises(FileNotFoundError):
                list(store.range_blocks(key, 0, 1))
            with pytest.raises(FileNotFoundError):
                list(store.blocks(key))

    def test_details(self, store: ObjectStore) -> None:
        """Size, time and ETag are the same in a listing; another ETag is refused."""
        store.put("a/b", b"0123456789")
        info = store.info("a/b")
        assert info is not None
        assert (info.key, info.size_bytes) == ("a/b", 10)
        (listed,) = store.details("a")
        assert (listed.key, listed.size_bytes, listed.etag) == ("a/b", 10, info.etag)
        assert abs(listed.modified_s - info.modified_s) < 1
        if not info.etag:
            return
        assert bytes(store.get_range("a/b", 3, 4, info.etag)) == b"3456"
        store.put("a/b", b"other bytes")
        with pytest.raises(ObjectChangedError, match="a/b is not the object it was"):
            store.get_range("a/b", 3, 4, info.etag)

    def test_deleting(self, store: ObjectStore) -> None:
        """What is not there is no error, and no other prefix is touched."""
        for key in ("run-1/x", "run-1/d/y", "run-10/x", "z"):
            store.put(key, b"1")
        store.delete(["z", "never/was"])
        store.delete(["never"])
        assert not store.exists("z")
        store.delete_all("run-1")
        store.delete_all("run-1")
        assert [key for key, _ in store.list()] == ["run-10/x"]
        store.delete_all("")
        assert list(store.list()) == []

    def test_a_large_object_in_parts(self, store: ObjectStore) -> None:
        """What is larger than any part comes back as it was."""
        blocks = [secrets.token_bytes(MIB) for _ in range(20)]
        store.put_blocks("a/large", iter(blocks), 20 * MIB)
        info = store.info("a/large")
        assert info is not None
        assert info.size_bytes == 20 * MIB
        assert b"".join(store.blocks("a/large")) == b"".join(blocks)
        assert bytes(store.get_range("a/large", 8 * MIB - 2, 4)) == blocks[7][-2:] + blocks[8][:2]
        store.put("a/whole", b"".join(blocks))
        assert store.get("a/whole") == b"".join(blocks)

    @pytest.mark.parametrize("said_bytes", [1, 20 * MIB])
    def test_what_comes_counts_and_not_what_was_said(self, store: ObjectStore, said_bytes: int) -> None:
        """A file may grow or shrink while it is read."""
        store.put_blocks("a/grown", iter([b"x" * 1000, b"y" * 24]), said_bytes)
        assert store.get("a/grown") == b"x" * 1000 + b"y" * 24

    @pytest.mark.parametrize("size_bytes", [1, 20 * MIB])
    def test_an_exception_while_writing_leaves_nothing(self, store: ObjectStore, size_bytes: int) -> None:
        """The source of an upload may fail in the middle; its exception passes."""

        def broken() -> Iterator[bytes]:
            yield b"x" * 1000
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.put_blocks("x/half", broken(), size_bytes)
        assert list(store.list()) == []

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names(self, store: ObjectStore, name: str) -> None:
        """They are listed as they were given."""
        store.put(name, name.encode())
        assert store.get(name) == name.encode()
        assert [key for key, _ in store.list()] == [name]
        below = ObjectStore(store.url_of("50%"))
        below.put("x", b"1")
        assert store.get("50%/x") == b"1"
        store.delete([name, "50%/x"])
        assert list(store.list()) == []

    def test_stores_of_one_url_are_the_same(self, store: ObjectStore) -> None:
        """A URL is all that processes and machines tell each other."""
        store.put("x", b"1")
        assert ObjectStore(store.url).url == store.url
        assert ObjectStore(store.url).get("x") == b"1"

    def test_it_answers(self, store: ObjectStore) -> None:
        """One that is well, if it can be asked."""
        assert store.answers()
        store.check_writable()
        assert list(store.list()) == []

    def test_errors_are_told_by_type(self, troubles: Mapping[StoreTrouble, ObjectStore]) -> None:
        """What decides whether to wait looks at the type; users are told where, and what to do."""
        for trouble, store in troubles.items():
            with pytest.raises(ERRORS[trouble], match=r"(?s)Cannot write .*/x: .*\.") as raised:
                store.put("x", b"1")
            assert isinstance(raised.value, PublishError)
            assert raised.value.hint
            assert store.url in str(raised.value)
