"""Places that schedule by themselves, the real ones. `make test` leaves most of it to `make places`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "lab"))  # the one who rents

from renter import Renter

from trainmaster.testing.private_slurm import NoSlurmError, PrivateSlurm, check_installed

SETTINGS = """\
scratch: {scratch}
notice: 40s
machines:
  node: {{cpus: 2, memory: 900MB}}
  half: {{cpus: 1, memory: 300MB}}
  scavenger: {{cpus: 2, memory: 900MB, partition: scavenge}}
  short: {{cpus: 2, memory: 900MB, time_limit: 5m}}
  wide: {{cpus: 4, memory: 900MB}}
"""


@dataclass(frozen=True)
class Account:
    """Somebody with a home who may use a Slurm. env: of the commands. home: ``TRAINMASTER_HOME``."""

    slurm: PrivateSlurm
    home: Path
    env: dict[str, str]


@pytest.fixture(scope="session")
def slurm() -> Iterator[PrivateSlurm]:
    """One for all tests."""
    try:
        check_installed()
    except NoSlurmError as error:
        pytest.skip(str(error))
    with PrivateSlurm(3, preempts_after_s=30) as running:
        yield running


@pytest.fixture
def account(slurm: PrivateSlurm, tmp_path: Path) -> Iterator[Account]:
    """A new user of it; nodes are as they were afterwards."""
    home = tmp_path / "home"
    home.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (home / "slurm.yaml").write_text(SETTINGS.format(scratch=scratch))
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    cache = os.environ.get("TRAINMASTER_CACHE", "")
    yield Account(
        slurm,
        home,
        {**kept, **slurm.environ, "TRAINMASTER_HOME": str(home)}
        | ({"TRAINMASTER_CACHE": cache} if cache else {}),
    )
    slurm.command("scancel", "-u", "root", check=False)
    for name in slurm.names:
        slurm.cut(name, healed=True)


@pytest.fixture
def user(account: Account, tmp_path: Path) -> Iterator[Renter]:
    """They run recipes there; what is left of that is a failure."""
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(account, work)
    yield renter
    renter.kill_all()
