"""``python -m trainmaster.service.on_cluster.machine_driver PLACE``: drives one run on a machine of its own.

Its home, with a database of its own, is at PLACE. It may be killed at any line: the next one, started by
`on_cluster/driver_watchdog.py` with the same `Assignment`, goes on. Its last act is to give its own machine
back.
"""

# ruff: noqa: T201 - what it prints is its answer
from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import signal
import sys
import time
import traceback
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from trainmaster.cluster.node_files.worker import trust_somebody
from trainmaster.cluster.node_provisioner import packages_of_nodes
from trainmaster.cluster.record import ClusterState, readable
from trainmaster.db import Lease, Note, run_transfer
from trainmaster.providers.base import Provider, ProviderPlace
from trainmaster.providers.examining import examined
from trainmaster.providers.plugins import get_provider
from trainmaster.providers.sent_settings import DRIVES_VARIABLE, in_memory
from trainmaster.service.clusters import end_clusters
from trainmaster.service.driving.encryption import KEY_FILE_VARIABLE, SealingKey
from trainmaster.service.driving.replicas import bring_code
from trainmaster.service.on_cluster.assignment import Assignment, Record
from trainmaster.service.on_cluster.driver_store import DriverStore
from trainmaster.service.on_cluster.driver_watchdog import (
    DRIVING,
    FAILED,
    OVER,
    READY,
    REFUSED,
    forbid_looking,
    read_part,
)
from trainmaster.service.on_cluster.publication import Publication
from trainmaster.service.quotes.history import DEVICE_FILE
from trainmaster.service.service import Service
from trainmaster.spec.errors import LeaseLostError, NotFoundError, ProviderError, TrainmasterError, one_line
from trainmaster.spec.private_files import write_private
from trainmaster.spec.states import State

_METADATA: Final = "169.254.169.254"
_METADATA_S: Final = 2.0
#: How often it is tried to give our own machine back; its dead-man switch ends it in any case.
_AGAIN_S: Final = 15.0
_TRIES: Final = 40

#: What is imported only where a run is driven.
_NEEDED: Final = (
    "trainmaster.service.driving.driving",
    "trainmaster.service.driving.run_clusters",
    "trainmaster.executors.gangs.executor",
)

log = logging.getLogger(__name__)


class MachineDriver:
    """Drives the run of an assignment.

    Args:
        assignment: what was sent, while the home still drives the run.
        place: the home that is made for it.
    """

    def __init__(self, assignment: Assignment, place: Path) -> None:
        self._assignment = assignment
        self._begun = assignment.record.begun
        self._environ = _environment(assignment, place)
        os.environ.update(self._environ)  # object stores and boto3 read it
        trust_somebody()
        self._service = Service.from_environment(self._environ)
        self._store = DriverStore(assignment.store_url, assignment.run, assignment.claim)

    def get_ready(self) -> None:
        """Do all that takes time and can be done while somebody else drives the run. Nothing of it is seen.

        Raises:
            TrainmasterError: it cannot be driven from here.
        """
        row, home = self._assignment.record.rows.run, self._service.home
        home.identity()
        self._service.database.clock_s()  # it is made, and migrated
        self._store.is_followed()  # it can be reached from here
        bring_code(row["store_url"], Path(row["code_path"]).name, home.snapshots)
        records = readable(self._assignment.record.rows.clusters, log.warning)
        packages_of_nodes(home, {record.plan.engine for record in records})
        place = ProviderPlace(home.root, row["home_id"], self._environ)
        with closing(get_provider(row["provider"], place)) as provider:
            # Its home may reach it by another way, or with other rights. One that has begun goes on without.
            if self._assignment.files and not self._has_begun():
                _check_usable(provider)
            with suppress(ProviderError):  # the run goes on while its API is away
                provider.nodes(self._assignment.own_cluster)
        for name in _NEEDED:
            import_module(name)

    def settle(self, last: Record) -> bool:
        """Write down what the home has left, and claim the run; False if somebody else drives it.

        Args:
            last: of the run, after what was sent before.

        Raises:
            TrainmasterError: it cannot be done here.
        """
        given, record = self._assignment, last.after(self._assignment.record)
        self._begun = record.begun
        run_transfer.settle(
            self._service.database,
            record.rows,
            record.news,
            {
                "lease_owner": None,
                "lease_expires_at": time.time(),  # it was driven until now
                "away": None,
                "team": None,  # whose it is matters at home, where it is charged and its secrets are
                "notify": None,  # and who is to be told
                "can_move": True,
                "lease_token": record.rows.run["lease_token"] + 1,
            },
        )
        is_ours = self._store.take(f"{given.machine} {record.rows.run['lease_token']}")
        return is_ours and not self._store.is_followed()

    def drive(self) -> None:
        """Drive the run to its end, and give back all its machines, our own last.

        Raises:
            LeaseLostError: somebody else drives it.
        """
        run, database = self._assignment.run, self._service.database
        if database.run_row(run)["state"] != State.DONE:
            session = self._service.take(run, self._environ)
            if session is None:
                raise LeaseLostError.of(run)
            note = Note(f"{self._assignment.machine}, its first machine, drives it from now on")
            database.commit(session.lease, [note], time.time())
            publication = self._publication(session.lease)
            signal.signal(signal.SIGTERM, publication.on_sigterm)
            if device := self._assignment.device:  # what is measured is to be found again at home
                write_private(self._service.home_of(run).root / DEVICE_FILE, device.encode())
            from trainmaster.service.driving.driving import Driving

            Driving(self._service, session, self._environ, files=publication).run()
        else:  # an earlier driver was killed at its end
            lease = database.acquire(run)
            if lease is None:
                raise LeaseLostError.of(run)
            publication = self._publication(lease)
            publication.begin()
            database.release(lease)
        self._give_back(publication)

    # --- private ------------------------------------------------------------------------------------

    def _has_begun(self) -> bool:
        """Whether an earlier driver here was given the run."""
        with suppress(NotFoundError):
            return bool(self._service.database.run_row(self._assignment.run))
        return False

    def _publication(self, lease: Lease) -> Publication:
        given, row = self._assignment, self._service.database.run_row(self._assignment.run)
        return Publication(
            self._service.database,
            lease,
            self._service.home_of(given.run),
            row["provider"],
            partial(SealingKey.of, self._service.home.root, self._environ),
            self._store,
            given.own_cluster,
            self._begun,
        )

    def _give_back(self, publication: Publication) -> None:
        """End what is left of the run's clusters; our own only when all that we know is published."""
        database, run = self._service.database, self._assignment.run
        home, own = self._service.home_of(run), self._assignment.own_cluster
        left = [
            row["id"]
            for row in database.living_clusters(None, home.identity())
            if row["state"] not in (ClusterState.ENDED, ClusterState.KEPT)
        ]
        with suppress(TrainmasterError):
            end_clusters(database, home, self._environ, [each for each in left if each != own], log.info)
        publication.finish()
        for _ in range(_TRIES if own in left else 0):
            try:
                end_clusters(database, home, self._environ, [own], log.info)
            except TrainmasterError as error:
                log.warning("%s", one_line(error))
            time.sleep(_AGAIN_S)


def _environment(given: Assignment, place: Path) -> dict[str, str]:
    """Ours, with what was sent; keys and logins are in memory only, and gone when this process is."""
    found = {
        **os.environ,
        **given.environ,
        "TRAINMASTER_HOME": str(place),
        "TRAINMASTER_CACHE": str(place / "cache"),
        "TRAINMASTER_STORE": given.store_url,
        DRIVES_VARIABLE: given.machine,
        **({} if given.files else _network()),  # a place that is no EC2 has settings of its own
        **in_memory({**given.files, KEY_FILE_VARIABLE: given.key}, os.environ),
    }
    if given.lab is not None:
        memory = Path("/dev/shm" if Path("/dev/shm").is_dir() else place) / f"trainmaster-{given.run}"  # noqa: S108
        memory.mkdir(mode=0o700, exist_ok=True)
        facts = {**given.lab, "inside_vpc": found.get("TRAINMASTER_AWS_INSIDE_VPC", "")}
        write_private(memory / "lab.json", json.dumps(facts).encode())
        with suppress(FileExistsError):
            (place / "lab").symlink_to(memory)
    return found


def _check_usable(provider: Provider) -> None:
    """Refuse a place that cannot be used from this machine as its home uses it.

    Raises:
        ProviderError: why.
    """
    for finding in examined(provider, {}):
        if not finding.ok and finding.what in ("login", "rights"):
            raise ProviderError(f"{provider.name}, from its machine: {finding.found}", finding.advice)


def _network() -> dict[str, str]:
    """The network of this machine, as EC2 tells it, from which we log in to others; nothing elsewhere."""
    try:
        token = _metadata("/latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        known = {"X-aws-ec2-metadata-token": token}
        mac = _metadata("/latest/meta-data/mac", "GET", known)
        card = f"/latest/meta-data/network/interfaces/macs/{mac}"
        vpc = _metadata(f"{card}/vpc-id", "GET", known)
        block = _metadata(f"{card}/vpc-ipv4-cidr-block", "GET", known)
    except (OSError, http.client.HTTPException):
        return {}
    found = {"TRAINMASTER_AWS_INSIDE_VPC": vpc, "TRAINMASTER_AWS_SSH_FROM": block}
    return {name: value for name, value in found.items() if value}


def _metadata(path: str, method: str, headers: dict[str, str]) -> str:
    connection = http.client.HTTPConnection(_METADATA, timeout=_METADATA_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode().strip()
        return body if answer.status == http.client.OK else ""
    finally:
        connection.close()


def main(place: Path) -> int:
    """Get ready for what standard input says, and drive it when that says so."""
    forbid_looking()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("asyncssh").setLevel(logging.WARNING)  # it tells each call, which fills a disk in weeks
    first = read_part(sys.stdin.buffer)
    if first is None:
        return REFUSED
    assignment = Assignment.unpacked(first)
    assert base64.b64decode(assignment.key, validate=True)
    try:
        driver = MachineDriver(assignment, place)
        driver.get_ready()
        print(READY.decode(), flush=True)
        last = read_part(sys.stdin.buffer)
        if last is None:  # it is driven elsewhere
            return REFUSED
        if not driver.settle(Record.unpacked(last)):
            print(f"{FAILED.decode()}another driver has it", flush=True)
            return REFUSED
    except TrainmasterError as error:
        print(f"{FAILED.decode()}{one_line(error)}", flush=True)
        raise
    except Exception as error:
        print(f"{FAILED.decode()}{type(error).__name__}: {error}", flush=True)
        raise
    print(DRIVING.decode(), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        driver.drive()
    except LeaseLostError:
        return REFUSED
    except Exception:  # noqa: BLE001 - started again
        traceback.print_exc()
        return 1
    return OVER


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
