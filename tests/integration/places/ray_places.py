"""Somebody who may use a Ray of three nodes in which others work, and what they leave there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from place_runs import until
from renter import Renter

from trainmaster.testing.private_network import NoNetworkError
from trainmaster.testing.private_ray import PrivateRay, check_installed

#: Half of a node: the other half is for others.
SETTINGS = """\
{way}scratch: {scratch}
machines:
  node: {{cpus: 1, memory: 500MB, gpus: 1}}
  half: {{cpus: 1, memory: 300MB}}
  rack: {{cpus: 1, memory: 500MB, labels: {{rack: "7"}}, resources: {{scanner: 1}}}}
  huge: {{cpus: 64, memory: 500MB}}
  dear: {{cpus: 1, memory: 500MB, usd_per_hour: 3}}
"""
#: Counts for ever, with all of what we leave it of the first node.
TENANT = """
@ray.remote(num_cpus=1)
class Counter:
    def __init__(self):
        import threading, time
        self.count = 0
        def run():
            while True:
                time.sleep(0.1)
                self.count += 1
        threading.Thread(target=run, daemon=True).start()
    def seen(self):
        return self.count
made = Counter.options(name='counter', lifetime='detached', get_if_exists=True).remote()
print(ray.get(made.seen.remote()))
"""


@dataclass(frozen=True)
class RayAccount:
    """Somebody with a home who may use a Ray. env: of the commands. home: ``TRAINMASTER_HOME``."""

    home: Path
    env: dict[str, str]


def running_ray(tools: Path, guard: str = "") -> Iterator[PrivateRay]:
    """One for all tests of a file; `tools` is on the `PATH` of every node; `guard`: see `PrivateRay`."""
    try:
        check_installed()
    except NoNetworkError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        with PrivateRay(3, guard) as running:
            yield running


def account_of(ray: PrivateRay, folder: Path) -> RayAccount:
    """A new user of it, beside somebody else."""
    assert ray.said(TENANT)
    home = folder / "home"
    home.mkdir()
    (home / "ray.yaml").write_text(SETTINGS.format(way=ray.way, scratch=ray.scratch))
    names = ("HOME", "LANG", "PATH", "TRAINMASTER_CACHE")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return RayAccount(home, {**kept, "TRAINMASTER_HOME": str(home)})


def renter_of(
    ray: PrivateRay, account: RayAccount, folder: Path, kind: type[Renter] = Renter
) -> Iterator[Renter]:
    """They run recipes there; what is left of that is a failure, and so is an end of other work."""
    work = folder / "work"
    work.mkdir()
    renter = kind(account, work)
    before, starts = int(ray.said(TENANT)), ray.starts
    yield renter
    renter.kill_all()
    sys.stdout.write(ray.log())  # shown if it fails
    assert int(ray.said(TENANT)) > (before if ray.starts == starts else 0)
    until(lambda: not ray.others(), seen=ray.others)
    until(lambda: not ray.files(), seen=ray.files)
