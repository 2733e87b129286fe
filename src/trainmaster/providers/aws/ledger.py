"""`AwsLedger`: what the home must know of its machines without asking: a few small files, and the SSH key."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

from trainmaster.providers.cluster_ledger import ProviderFiles, damaged
from trainmaster.spec.plain_json import typed
from trainmaster.spec.private_files import short_digest, write_private

_Type = TypeVar("_Type")
_REGIONS_HINT: Final = (
    'Write {"regions": ["us-east-1"]} there, with every region in which this home may have machines: '
    "no other place is looked at, and what is rented there ends only with its lease."
)
_ATTEMPT_HINT: Final = (
    "Look in the EC2 console which machines the cluster has, end those that are unused, and remove the file."
)
_HOST_KEY_HINT: Final = "Remove the file, and end the cluster: its machines cannot be told from others."


class AwsLedger(ProviderFiles):
    """See `ProviderFiles`.

    A region is written down before anything is asked for there, and the zone of a request before it is sent:
    what comes after a crash looks where the first one was, and repeats the very call.
    """

    comment = "trainmaster"

    def regions(self) -> list[str]:
        """Where this home has ever rented."""
        return self._known("regions.json", list[str], "regions", [], _REGIONS_HINT)

    def add_region(self, region: str) -> None:
        """Remember it, for good."""
        if region in self.regions():
            return
        with self._locked("lock"):
            self._write("regions.json", {"regions": sorted({*self.regions(), region})})

    def attempt(self, cluster: str, token: str) -> str:
        """The zone in which a request was last asked for; '' if it was not, or was refused there."""
        return self._known(_name(cluster, token), str, "zone", "", _ATTEMPT_HINT)

    def set_attempt(self, cluster: str, token: str, zone: str) -> None:
        """A request is about to be sent there; '' when it is known to have given nothing."""
        with self._locked("lock"):
            self._write(_name(cluster, token), {"cluster": cluster, "token": token, "zone": zone})

    def attempts(self, cluster: str) -> list[str]:
        """Tokens of the requests of a cluster that were sent and not refused."""
        names = [path.name for path in sorted(self.directory.glob(f"{short_digest(cluster)}-*.json"))]
        return [
            self._known(name, str, "token", "", _ATTEMPT_HINT)
            for name in names
            if self._known(name, str, "zone", "", _ATTEMPT_HINT)
        ]

    def forget(self, cluster: str) -> None:
        """The cluster is given back."""
        for path in self.directory.glob(f"{short_digest(cluster)}-*.json"):
            path.unlink(missing_ok=True)

    def host_key(self, cluster: str, token: str) -> tuple[str, str]:
        """The key that machines of a request have when they boot: private, as in a file, and public.

        The same for as long as the cluster lasts, as a call that is repeated must be the same call.
        """
        name = f"{short_digest(cluster)}-{short_digest(token)}-host.json"
        if not (self.directory / name).exists():
            with self._locked("lock"):
                if not (self.directory / name).exists():
                    from trainmaster.transport.key_pairs import make_key_pair

                    pair = make_key_pair()
                    self._write(name, {"private": pair.private, "public": pair.public})
        half = {key: self._known(name, str, key, "", _HOST_KEY_HINT) for key in ("private", "public")}
        return half["private"], half["public"]

    def _known(self, name: str, kind: type[_Type], key: str, default: _Type, hint: str) -> _Type:
        """What a file says; if it is damaged nothing may be taken for not being there."""
        try:
            found = self._told(self.directory / name, hint)
            return typed(kind, found[key]) if key in found else default
        except FileNotFoundError:
            return default
        except ValueError as error:
            raise damaged(self.directory / name, error, hint) from None

    def _write(self, name: str, values: dict[str, Any]) -> None:
        write_private(self.directory / name, json.dumps(values).encode())
        self.saved()


def _name(cluster: str, token: str) -> str:
    return f"{short_digest(cluster)}-{short_digest(token)}.json"
