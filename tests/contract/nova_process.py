"""A real Nova in one process: `PYTHON nova_process.py ADDRESS PORT KEYSTONE HOOK`; see `private_nova`.

API, conductor, scheduler, compute and Placement are the real ones, on SQLite. Neutron, Glance and Cinder are
those that Nova's own functional tests stand on; what of them the provider speaks with over HTTP is answered
here from them. All of it is behind Keystone's own middleware, which asks the real Keystone at an address; a
token ``user:`` is the tests' own way past it. With a hook, each machine is booted by it: it is
sent what is booted, or ended, and answers with its address, and the one that a floating address is then, or
with the fault of what fails. ``/trouble``
has the next calls fail, and tells what is left of that: so many are ``throttled``, so many requests for
servers come ``twice``.
"""

import contextlib
import io
import json
import os
import random
import sys
import threading
import time
import urllib.parse
import urllib.request
import warnings
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

#: Of the project that everybody works in: Nova's own tests name it.
PROJECT = "6f70656e737461636b20342065766572"


class Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def asked(hook, **what):
    request = urllib.request.Request(hook, json.dumps(what).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


class Services:
    """The parts of Neutron and Glance that are asked over HTTP."""

    def __init__(self, neutron, glance):
        self.neutron, self.glance = neutron, glance
        self.floating = {}
        self.reached_at = {}  # floating addresses by those of the machines that the hook has booted
        self.trouble = {}

    def is_in_trouble(self, kind):
        """Whether this call has it; there is one less then."""
        left = self.trouble.get(kind, 0)
        self.trouble[kind] = max(0, left - 1)
        return left > 0

    def image(self, path, query):
        images = [
            {"id": each["id"], "name": each["name"], "status": "active"}
            for each in self.glance.images.values()
        ]
        if path == "images":
            return 200, {"images": [each for each in images if query.get("name") in (None, each["name"])]}
        found = [each for each in images if path == f"images/{each['id']}"]
        return (200, found[0]) if found else (404, {"message": "no such image"})

    def network(self, method, path, query, body):
        kind, _, name = path.partition("/")
        tables = {
            "networks": self.neutron._networks,
            "ports": self.neutron._ports,
            "security-groups": self.neutron._security_groups,
            "floatingips": self.floating,
        }
        noun = kind.replace("-", "_")
        owner = {"tenant_id": self.neutron.tenant_id, "project_id": self.neutron.tenant_id}
        new = {"id": f"{random.getrandbits(128):032x}", **owner}
        if method == "GET":
            found = [
                each
                for each in tables[kind].values()
                if all(str(each.get(key, "")) == value for key, value in query.items())
            ]
            return 200, {noun: found}
        if method == "DELETE":
            if name not in tables[kind]:
                return 404, {"NeutronError": {"message": f"{name} could not be found"}}
            if any(name in port.get("security_groups", ()) for port in list(self.neutron._ports.values())):
                return 409, {"NeutronError": {"message": f"Security Group {name} in use."}}
            del tables[kind][name]
            return 204, None
        if kind == "security-group-rules":
            rule = body["security_group_rule"]
            rules = tables["security-groups"][rule["security_group_id"]]["security_group_rules"]
            if rule in rules:
                return 409, {"NeutronError": {"message": "Security group rule already exists."}}
            rules.append(rule)
            return 201, {"security_group_rule": {**rule, **new}}
        if kind == "security-groups":
            made = {**new, **body["security_group"], "security_group_rules": []}
        else:
            asked = body["floatingip"]
            fixed = self.neutron._ports[asked["port_id"]]["fixed_ips"][0]["ip_address"]
            address = self.reached_at.get(fixed, f"198.51.100.{len(self.floating) + 1}")
            made = {**new, **asked, "floating_ip_address": address}
        tables[kind][made["id"]] = made
        return 201, {noun[:-1]: made}

    def answer(self, method, path, query, body):
        if path == "/trouble":
            left, self.trouble = self.trouble, body
            return 200, left
        service, _, rest = path[1:].partition("/")
        rest = rest.partition("/")[2]
        return self.image(rest, query) if service == "image" else self.network(method, rest, query, body)


def signed_in(app, service, keystone):
    """A service behind what asks Keystone who has a token, and what it may do there."""
    from keystonemiddleware import auth_token

    asks = {"auth_type": "password", "auth_url": keystone, "username": "admin", "password": "right"}
    asks |= {"project_name": "admin", "user_domain_id": "default", "project_domain_id": "default"}
    return auth_token.AuthProtocol(app, {**asks, "www_authenticate_uri": keystone, "service_type": service})


def main(address, port, keystone, hook):
    os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")
    import nova

    # Its test configuration looks for api-paste.ini beside the package; pip puts it elsewhere.
    beside = Path(nova.__file__).parents[1] / "etc"
    if not beside.exists():
        beside.symlink_to(Path(sys.prefix) / "etc")
    from nova.tests.functional import integrated_helpers  # first: it settles how threads are made

    from neutronclient.common import exceptions as neutron_exceptions  # isort: skip
    from nova import context as nova_context  # isort: skip
    from nova import exception  # isort: skip
    from nova.db.main import api as database  # isort: skip
    from nova.virt import fake  # isort: skip
    from futurist._thread import ThreadWorker  # isort: skip

    ThreadWorker.MAX_IDLE_FOR = 60  # else some 200 of them, which look each second, take a third of a core

    class Neutron(integrated_helpers.nova_fixtures.NeutronFixture):
        """Whose ports have addresses of their own, and the groups that were asked for."""

        last = 40

        def create_port(self, body=None):
            made = super().create_port(body)["port"]["id"]
            Neutron.last = 40 + (Neutron.last - 39) % 200
            port = self._ports[made]
            port["fixed_ips"] = [{**port["fixed_ips"][0], "ip_address": f"192.168.1.{Neutron.last}"}]
            if body and body["port"].get("security_groups"):
                port["security_groups"] = list(body["port"]["security_groups"])
            return {"port": json.loads(json.dumps(port))}

        def find_resource(self, kind, wanted, *_, **__):
            found = [each for each in self._security_groups.values() if wanted in (each["id"], each["name"])]
            if not found:
                raise neutron_exceptions.NotFound(message=f"Unable to find {kind} with name or id {wanted!r}")
            return found[0]

    class LabDriver(fake.FakeDriver):
        vcpus, memory_mb, local_gb = 64, 256_000, 4_000

        def spawn(self, context, instance, *rest, network_info=None, **more):
            rest = list(rest)
            if len(rest) > 4 and network_info is None:
                network_info = rest.pop(4)
            if "failing" in instance.display_name:
                reason = "no room, as asked for"
                raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=reason)
            if hook:
                told = asked(
                    hook,
                    boot=instance.uuid,
                    flavor=instance.flavor.name,
                    user_data=instance.user_data or "",
                    key=instance.key_data or "",
                )
                if "fault" in told:
                    raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=told["fault"])
                cloud.services.reached_at[told["address"]] = told["floating"]
                for vif in network_info:
                    vif["network"]["subnets"][0]["ips"][0]["address"] = told["address"]
                    the_port = cloud.neutron._ports[vif["id"]]
                    the_port["fixed_ips"][0]["ip_address"] = told["address"]
                instance.info_cache.network_info = network_info
                instance.info_cache.save()
            return super().spawn(context, instance, *rest, network_info=network_info, **more)

        def destroy(self, context, instance, *rest, **more):
            if hook:
                asked(hook, end=instance.uuid)
            return super().destroy(context, instance, *rest, **more)

    # The tests' own way to reach several cells locks all threads out of each other, for ever now and then.
    # What is not told which cell to ask asks the only one with computes, as it does in real life.
    class Cells(integrated_helpers.nova_fixtures.CellDatabases):
        @contextlib.contextmanager
        def _wrap_target_cell(self, context, cell_mapping):
            with self._real_target_cell(context, cell_mapping) as targeted:
                yield targeted

        def _wrap_get_context_manager(self, context):
            return getattr(context, "db_connection", None) or self._default_ctxt_mgr

    integrated_helpers.nova_fixtures.CellDatabases = Cells
    fake.LabDriver = LabDriver  # found by name: compute_driver = fake.LabDriver
    integrated_helpers.nova_fixtures.NeutronFixture = Neutron

    class Cloud(integrated_helpers._IntegratedTestBase):
        CAST_AS_CALL = False
        microversion = "2.90"

        def _setup_compute_service(self):
            self.flags(compute_driver="fake.LabDriver")
            return self._start_compute("compute")

        def runTest(self):
            global cloud
            cloud = self
            warnings.resetwarnings()  # its tests end at one, also at those of a newer SQLAlchemy
            warnings.simplefilter("ignore")
            app = self.api_fixture.app()
            owner = {"tenant_id": self.neutron.tenant_id, "project_id": self.neutron.tenant_id}
            public = {**self.neutron.network_1, "id": "0" * 31 + "1", "name": "public", **owner}
            self.neutron._networks[public["id"]] = {**public, "subnets": [], "router:external": True}
            # Where failed machines are kept, the first one would wait for its own transaction to make this.
            member = nova_context.RequestContext("me", self.neutron.tenant_id)
            with nova_context.target_cell(member, self.cell_mappings["cell0"]) as cell0:
                database.security_group_ensure_default(cell0)
            self.services = services = Services(self.neutron, self.glance)

            def rest(environ, start_response):
                """What is no Nova."""
                length = int(environ.get("CONTENT_LENGTH") or 0)
                body = json.loads(environ["wsgi.input"].read(length)) if length else None
                query = dict(urllib.parse.parse_qsl(environ.get("QUERY_STRING", "")))
                path = environ["PATH_INFO"]
                status, said = services.answer(environ["REQUEST_METHOD"], path, query, body)
                start_response(f"{status} -", [("Content-Type", "application/json")])
                return [b"" if said is None else json.dumps(said).encode()]

            def compute(environ, start_response):
                """Nova, which is told who asks in the way of its own tests."""
                user = environ["HTTP_X_USER_NAME"]
                if user != "admin" and services.is_in_trouble("throttled"):
                    start_response("429 Too Many Requests", [("Retry-After", "1")])
                    return [b"{}"]
                environ["HTTP_X_AUTH_USER"] = user
                environ["HTTP_X_AUTH_PROJECT_ID"] = environ["HTTP_X_PROJECT_ID"]
                asks = environ["REQUEST_METHOD"] == "POST" and environ["PATH_INFO"].endswith("/servers")
                if asks and services.is_in_trouble("twice"):
                    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                    again = {**environ, "wsgi.input": io.BytesIO(body)}
                    list(app(again, lambda *_: lambda _: None))
                    environ["wsgi.input"] = io.BytesIO(body)
                return app(environ, start_response)

            inner = {"compute": compute, "network": rest, "image": rest}
            guarded = {kind: signed_in(inner[kind], kind, keystone) for kind in inner}

            def front(environ, start_response):
                kind = {"v2.1": "compute"}.get(first := environ["PATH_INFO"].split("/")[1], first)
                user, is_ours, _ = environ.get("HTTP_X_AUTH_TOKEN", "").partition(":")
                if kind == "trouble":
                    return rest(environ, start_response)
                if not is_ours:
                    return guarded[kind](environ, start_response)
                environ["HTTP_X_USER_NAME"], environ["HTTP_X_PROJECT_ID"] = user, PROJECT
                environ["HTTP_X_ROLES"] = "reader,member" + (",admin" if user == "admin" else "")
                return inner[kind](environ, start_response)

            server = make_server(address, port, front, Threaded, Quiet)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print("ready", flush=True)
            while True:
                time.sleep(1)

    test = Cloud()
    test.setUpClass()
    result = test.run()
    for _, text in [*result.errors, *result.failures]:
        print(text[-3000:], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
