"""What nodes answer of an object store: its kind is beside the words."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.cluster.node_files.node_stores import NodeStores, StoreRefusedError
from trainmaster.objects.errors import StoreTrouble
from trainmaster.transport.base import Result

NODE: Any = SimpleNamespace(id="i-1", target=SimpleNamespace(shown="n1"), python=sys.executable)


class Links:
    """A node that answers as it is told, or else runs the program here."""

    def __init__(self, answer: str = "") -> None:
        self._answer = answer

    @contextlib.contextmanager
    def own(self, _: object) -> Iterator[Any]:
        yield self

    def exchange(self, talk: Any, timeout_s: float) -> Result:
        said = self._answer.encode()
        if not said:
            command = ["bash", "-c", talk.command]
            said = subprocess.run(
                command, input=talk.lead, stdout=subprocess.PIPE, timeout=timeout_s, check=False
            ).stdout
        talk.sink(said)
        return Result(1, "", "it was killed")


def refusal(links: Any, directory: str = "/x") -> StoreRefusedError:
    with pytest.raises(StoreRefusedError) as raised:
        NodeStores(links).restore(NODE, "file:///no/such/store", directory, {})
    return raised.value


def test_a_node_says_of_what_kind_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal(Links(), f"{tmp_path}/file/x/y")
    assert (error.node, error.trouble) == ("i-1", StoreTrouble.REFUSED)
    assert str(error).startswith("n1: 20 Not a directory")


@pytest.mark.parametrize(
    ("more", "trouble"),
    [
        ({"trouble": "unreachable"}, StoreTrouble.UNREACHABLE),
        ({"trouble": ""}, StoreTrouble.OTHER),
        ({"trouble": ["later"]}, StoreTrouble.OTHER),
        ({}, StoreTrouble.OTHER),
    ],
)
def test_a_runtime_of_another_version_may_say_nothing_of_it(
    more: dict[str, Any], trouble: StoreTrouble
) -> None:
    said = json.dumps({"error": "PublishError", "words": "connection refused", **more})
    assert refusal(Links(f"@@stores\n{said}\n")).trouble is trouble


def test_a_node_that_ends_without_a_word() -> None:
    error = refusal(Links("@@stores\n0\n"))
    assert (str(error), error.trouble) == ("n1: it was killed", StoreTrouble.OTHER)
