"""How many examples one step takes."""

from __future__ import annotations

from typing import Annotated, Any

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, integer


class Batch(Noun):
    """Examples per step, of all workers together or of each; exactly one is given.

    Attributes:
        total: of all workers (``global`` in the recipe).
        per_worker: of each worker.
    """

    total: Annotated[int | None, Key("global", integer(1))] = None
    per_worker: Annotated[int | None, Key("per_worker", integer(1))] = None

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Refuse what is no mapping, with an example of one."""
        if node.kind is not Kind.MAPPING:
            raise problems.refuse(node, path, f"{node.describe()}; write {{global: N}} or {{per_worker: N}}")
        return node

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        given = [name for name in ("global", "per_worker") if name in node.entries]
        if len(given) != 1:
            found = "both of `global` and `per_worker`" if given else "no size"
            problems.add(node, path, f"{found}; write {{global: N}} or {{per_worker: N}}")

    def sizes(self, workers: int) -> tuple[int, int]:
        """Examples per step of all workers and of each.

        Raises:
            ValueError: the global batch cannot be shared out evenly. Rounding would change what is trained.
        """
        if self.per_worker is not None:
            return self.per_worker * workers, self.per_worker
        total = self.total or 0
        if total % workers:
            raise ValueError(f"a global batch of {total} cannot be shared evenly by {workers} workers")
        return total, total // workers
