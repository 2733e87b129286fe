"""Where a task's data come from."""

from __future__ import annotations

from typing import Annotated, Any, Final

from trainmaster.spec.node import Node
from trainmaster.spec.reading import Key, Noun, Path, Problems, pattern, text

#: What experiments may be called: they become names of directories.
EXPERIMENT_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
EXPERIMENT_NAME_RIGHT: Final = (
    "write a name of letters, digits, '.', '_' and '-' that begins with a letter or digit"
)
_KINDS: Final = ("volume", "url", "dir", "from")


class DataSource(Noun):
    """One entry of ``data``; exactly one of volume, url, directory and experiment is given.

    Attributes:
        volume: a volume's name or URL.
        url: objects under a URL.
        directory: a directory of the caller's machine (``dir`` in the recipe).
        experiment: the models of another experiment (``from`` in the recipe).
        best: only the model that is best by this metric.
        at: where members find it; None leaves the place to Trainmaster.
    """

    volume: Annotated[str | None, Key("volume", text("write a volume's name or URL"))] = None
    url: Annotated[str | None, Key("url", text("write a URL"))] = None
    directory: Annotated[str | None, Key("dir", text("write a directory"))] = None
    experiment: Annotated[str | None, Key("from", pattern(EXPERIMENT_NAME, "write an experiment's name"))] = (
        None
    )
    best: Annotated[str | None, Key("best", text("write a metric's name"))] = None
    at: Annotated[str | None, Key("at", text("write a path"))] = None

    @classmethod
    def check(cls, values: dict[str, Any], node: Node, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        given = [kind for kind in _KINDS if kind in node.entries]
        if len(given) != 1:
            found = f"{' and '.join(given)} together" if given else "no source"
            problems.add(node, path, f"{found}; give exactly one of {', '.join(_KINDS)}")
        if "best" in node.entries and "from" not in node.entries:
            problems.add(
                node.entries["best"], (*path, "best"), "`best` without `from`; only models have metrics"
            )
        if ".." in str(values.get("at", "")).split("/"):
            problems.add(node.entries["at"], (*path, "at"), "a path with '..'; write the place itself")
