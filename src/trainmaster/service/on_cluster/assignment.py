"""`Assignment`: all that the machine of a run needs to drive it; it goes there by SSH, into memory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trainmaster.db.run_transfer import News, RunRows
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.driving.replication import private_place


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is to be driven, and with what.

    Attributes:
        run: its id.
        claim: the number of the driver on the run's object store.
        who: names this driver there.
        store_url: of the store.
        own_cluster: that the machine belongs to.
        rows, news: of the run, as the home has them.
        begun: ids of the last event and the last piece of a file among them; what comes later is new.
        key: that its private files are sealed with, in base64.
        environ: variables: settings, and credentials for the provider and the store.
        lab: what a lab's API needs, where the machine is one of its hosts.
    """

    run: str
    claim: int
    who: str
    store_url: str
    own_cluster: str
    rows: RunRows
    news: list[News]
    begun: tuple[int, int]
    key: str = field(repr=False)
    environ: dict[str, str] = field(repr=False)
    lab: dict[str, Any] | None = field(default=None, repr=False)

    def packed(self) -> bytes:
        """As `unpacked` reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> Assignment:
        """What `packed` gave."""
        found: Mapping[str, Any] = json.loads(data)
        return cls(
            **{
                **found,
                "rows": RunRows(**found["rows"]),
                "news": [News(**each) for each in found["news"]],
                "begun": tuple(found["begun"]),
            }
        )


def key_of(home: SealingKey, run: str) -> SealingKey:
    """What seals the private files of one run on its machine: the home's own key stays here."""
    return SealingKey(hmac.digest(home.key, f"on-cluster/{run}".encode(), hashlib.sha256), home.file)


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
