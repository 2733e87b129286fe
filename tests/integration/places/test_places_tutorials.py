"""Tutorials of places are walked as somebody new does: by their own files, commands and output."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_reader import Reader

from trainmaster.testing.private_kubernetes import NoKubernetesError, PrivateKubernetes
from trainmaster.testing.private_slurm import NoSlurmError, check_installed

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="what is tried needs root"),
    pytest.mark.timeout(600),
    pytest.mark.places,
]
PAGES = Path(__file__).parents[3] / "docs" / "tutorials"
#: What the page of Kubernetes starts, and `kubectl`, where only the double is there.
DOUBLE = """
from trainmaster.testing.kubernetes_double import KubernetesDouble
from trainmaster.testing.private_server import stay
with KubernetesDouble(cpus=2.0, nodes=2) as double:
    print(f"export KUBECONFIG={double.kubeconfig}")
    stay("two nodes, and you may use the namespace research; Ctrl-C ends it\\n")
"""
KUBECTL = f"""#!{sys.executable}
import os, sys
from trainmaster.transport.kubernetes.api import KubeApi
from trainmaster.transport.kubernetes.login import read_login
api = KubeApi(read_login("", os.environ), "research")
if sys.argv[1] == "delete":
    api.call("DELETE", "pods/" + sys.argv[-1])
    sys.exit(print(f'pod "{{sys.argv[-1]}}" deleted'))
pods = api.all("pods")
print("NAME READY STATUS RESTARTS AGE" if pods else "No resources found in research namespace.")
for pod in pods:
    print(pod["metadata"]["name"], "1/1", pod["status"]["phase"], 0, "9s")
"""


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """Somebody who has what the page says that one needs; where it is not there, what stands in for it."""
    programs, instead = tmp_path / "bin", dict[str, str]()
    programs.mkdir()
    if request.param == "slurm":
        try:
            check_installed()
        except NoSlurmError as error:
            pytest.skip(str(error))
    elif request.param == "double":
        command = f"TMPDIR=/run exec python -c {shlex.quote(DOUBLE)}"
        instead["python -m trainmaster.testing.private_kubernetes"] = command
        (programs / "kubectl").write_text(KUBECTL)
        (programs / "kubectl").chmod(0o755)
    else:
        try:
            PrivateKubernetes.installed().close()
        except NoKubernetesError as error:
            pytest.skip(str(error))
    reader = Reader(tmp_path, str(programs), instead)
    yield reader
    reader.leave()


@pytest.mark.parametrize(
    ("page", "reader"),
    [("slurm", "slurm"), ("kubernetes", "double"), ("kubernetes", "real")],
    indirect=["reader"],
)
def test_a_tutorial_is_walked(reader: Reader, page: str) -> None:
    """What it shows is what one sees; the work goes on where it was, and nothing is left."""
    reader.walk(PAGES / f"{page}.md")
    begun = [int(step) for step in re.findall(r"#\d+ worker-\d \| begins at (\d+)", reader.said)]
    assert begun[:2] == [0, 0]
    assert max(begun) > 0
    reader.await_ends()
