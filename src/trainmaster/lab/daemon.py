"""The process that is the lab: EC2's API, the metadata service, and the parent of the hosts.

``python -m trainmaster.lab.daemon HOME_LAB CACHE_LAB IDENTITY``; `lifecycle` starts it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path

from trainmaster.lab import access
from trainmaster.lab.api import LabMiddleware
from trainmaster.lab.cloud import Cloud
from trainmaster.lab.control import Control
from trainmaster.lab.host_keys import SshKey
from trainmaster.lab.metadata import handler_for
from trainmaster.lab.place import LabPlace
from trainmaster.lab.region import METADATA_ADDRESS, Region
from trainmaster.lab.settings import LabSettings
from trainmaster.lab.traffic import TrafficControl
from trainmaster.spec.processes import start_ticks

log = logging.getLogger(__name__)

_METADATA_PORT = 80
#: The API answers hosts as well: a run may be driven from one.
_INSIDE_PORT = 8080
#: How soon it notices that its home is gone.
_LOOK_INTERVAL_S = 2.0


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM or SIGINT, then leave nothing behind."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    place = LabPlace(Path(arguments[0]), Path(arguments[1]), arguments[2])
    settings = LabSettings.load(place.settings_file)
    region = Region(place, settings)
    region.make()
    cloud = None
    try:
        cloud = _serve(place, settings, region)
        while not over.wait(_LOOK_INTERVAL_S):
            if not place.daemon_file.exists():
                log.info("the home was removed: this lab cannot be taken down any more")
                break
    finally:
        log.info("going down")
        if cloud is not None:
            cloud.close()
        region.remove()
        place.daemon_file.unlink(missing_ok=True)


def _serve(place: LabPlace, settings: LabSettings, region: Region) -> Cloud:
    from trainmaster.lab import hooks

    hooks.prepare(place.directory, settings)
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    cloud = hooks.install(settings, lambda calls: Cloud(place, settings, calls))
    key = SshKey.generate()
    group = hooks.furnish(settings, key.public)

    metadata = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(cloud), bind_and_activate=False)
    metadata.socket.close()
    metadata.socket = region.listen(_METADATA_PORT)
    threading.Thread(target=metadata.serve_forever, daemon=True, name="metadata").start()

    traffic = TrafficControl(place, settings, cloud.all, cloud.exclusively)
    cloud.connected, cloud.forgotten, cloud.closed = traffic.refresh, traffic.forget, traffic.close
    moto = DomainDispatcherApplication(create_backend_app)
    middleware = LabMiddleware(cloud, moto, Control(cloud, traffic), traffic.refresh)
    server = make_server("127.0.0.1", settings.port, middleware, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True, name="api").start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    listener = region.listen(_INSIDE_PORT)
    within = make_server(METADATA_ADDRESS, _INSIDE_PORT, middleware, threaded=True, fd=listener.fileno())
    listener.close()  # it has a descriptor of its own
    threading.Thread(target=within.serve_forever, daemon=True, name="api inside").start()
    inside = f"http://{METADATA_ADDRESS}:{_INSIDE_PORT}"

    def changed() -> None:
        _write_known_hosts(place, cloud)
        traffic.refresh()

    cloud.changed = changed
    _write_known_hosts(place, cloud)
    access.write_for_owner(place.private_key, key.private)
    access.write_for_owner(place.private_key.with_suffix(".pub"), key.public + "\n")
    access.write_for_owner(place.prices, access.price_list(settings, datetime.now(UTC).date()))
    access.write_for_owner(
        place.access_file,
        json.dumps(access.access(place, settings, endpoint, inside, group), indent=1) + "\n",
    )
    ready = {"pid": os.getpid(), "start_time": start_ticks(os.getpid()), "endpoint": endpoint}
    access.write_for_owner(place.daemon_file, json.dumps({**ready, "token": settings.control_token}))
    log.info("serving at %s", endpoint)
    # moto loads these at the first TerminateInstances, which would have to wait.
    threading.Thread(target=_warm, daemon=True, name="warm").start()
    return cloud


def _warm() -> None:
    import moto.autoscaling
    import moto.elbv2

    log.debug("%s and %s are loaded", moto.autoscaling.__name__, moto.elbv2.__name__)


_WRITING = threading.Lock()


def _write_known_hosts(place: LabPlace, cloud: Cloud) -> None:
    with _WRITING, cloud.exclusively:
        lines = [
            ((host.spec.public, host.spec.private), host.key.public)
            for instance, host in cloud.all()
            if instance._state.name in ("pending", "running")
        ]
        access.write_for_owner(place.known_hosts, access.known_hosts(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
