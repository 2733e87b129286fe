"""`Assignment`: all that the machine of a run needs to drive it; it goes there by SSH, into memory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from trainmaster.dataclass import dataclass, field
from trainmaster.db.run_files import private_place
from trainmaster.db.run_transfer import RunGrowth, RunRows
from trainmaster.service.driving.encryption import SealingKey


@dataclass(frozen=True, slots=True)
class Record:
    """A run as its home has it.

    Attributes:
        rows, news: of the run.
        begun: ids of the last event and the last piece of a file among them; what comes later is new.
    """

    rows: RunRows
    news: list[RunGrowth]
    begun: tuple[int, int]

    def packed(self) -> bytes:
        """As `unpacked` reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> Record:
        """What `packed` gave."""
        return cls.of(json.loads(data))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Record:
        """As JSON has it."""
        rows, news = RunRows(**found["rows"]), [RunGrowth(**each) for each in found["news"]]
        return cls(rows, news, tuple(found["begun"]))

    def after(self, earlier: Record) -> Record:
        """The whole of it, where ``news`` has only what is not in an earlier one."""
        return replace(self, news=[*earlier.news, *self.news])


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is to be driven, and with what.

    Attributes:
        run: its id.
        claim: the number of the driver on the run's object store.
        machine: that drives it, as its provider calls it.
        store_url: of the store.
        own_cluster: that the machine belongs to.
        record: of the run, while its home still drives it.
        key: that its private files are sealed with, in base64.
        environ: variables: settings, and credentials for the provider and the store.
        lab: what a lab's API needs, where the machine is one of its hosts.
        files: settings of the run's place and a login to it, by the variable that names each.
        device: what fingerprints of measurements call the home's machine.
    """

    run: str
    claim: int
    machine: str
    store_url: str
    own_cluster: str
    record: Record
    key: str = field(repr=False)
    environ: dict[str, str] = field(repr=False)
    lab: dict[str, Any] | None = field(default=None, repr=False)
    files: dict[str, str] = field(default_factory=dict, repr=False)
    device: str = ""

    def packed(self) -> bytes:
        """As `unpacked` reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> Assignment:
        """What `packed` gave."""
        found: Mapping[str, Any] = json.loads(data)
        return cls(**{**found, "record": Record.of(found["record"])})


def key_of(home: SealingKey, run: str) -> SealingKey:
    """What seals the private files of one run on its machine: the home's own key stays here."""
    own, *others = (hmac.digest(key, f"on-cluster/{run}".encode(), hashlib.sha256) for key in home.all)
    return SealingKey(own, home.file, tuple(others))


def resealed(rows: RunRows, before: SealingKey, after: SealingKey) -> RunRows:
    """The same rows, with what is sealed of them sealed with another key."""

    def again(row: dict[str, Any]) -> dict[str, Any]:
        place = private_place(row["run_id"], row["name"])
        plain = before.open(base64.b64decode(row["sealed"]), place)
        return {**row, "sealed": base64.b64encode(after.seal(plain, place)).decode()}

    return RunRows(
        **{
            **{name: getattr(rows, name) for name in RunRows.__slots__},
            "private": [again(row) for row in rows.private],
        }
    )
