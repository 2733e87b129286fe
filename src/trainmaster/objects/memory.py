"""Objects in this process's memory, for tests."""

from typing import TYPE_CHECKING, Any

from trainmaster.objects.obstore_backend import ObstoreBackend

if TYPE_CHECKING:
    from obstore.store import ObjectStore as AnyStore


class MemoryBackend(ObstoreBackend):
    """The objects below ``NAME/PREFIX``; all of a name are the same for the life of the process."""

    scheme = "memory"

    def identity(self) -> tuple[str, ...]:
        return ()

    def opened(self, bucket: str, options: dict[str, Any]) -> "AnyStore":
        from obstore.store import MemoryStore

        return MemoryStore()

    def put(self, key: str, data: bytes | memoryview) -> None:
        # obstore keeps what it is given, without a copy; its owner may use a buffer again.
        super().put(key, bytes(data))

    def _shared(self, *, sends_much: bool) -> "AnyStore":
        return super()._shared(sends_much=False)  # it is all there is of the objects

    def signed_url(self, key: str, seconds: float) -> str | None:
        return None

    def answers(self, limit_s: float) -> bool:
        return True
