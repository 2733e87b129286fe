"""A real Keystone on SQLite: `PYTHON keystone_process.py ADDRESS PORT CLOUD`; see `private_nova`.

Its users may work (``me``), only look (``viewer``), or do everything (``admin``). CLOUD is the address of
what stands for all other services.
"""

import sys
from pathlib import Path
from wsgiref.simple_server import make_server

from nova_process import PROJECT, Quiet, Threaded

SETTINGS = """\
[database]
connection = sqlite:///{here}/keystone.db
[token]
provider = fernet
[fernet_tokens]
key_repository = {here}/fernet
[fernet_receipts]
key_repository = {here}/receipts
[credential]
key_repository = {here}/credentials
[identity]
password_hash_rounds = 4
"""
SERVICES = {"compute": "/v2.1", "network": "/network", "image": "/image"}


def main(address, port, cloud):
    here = Path.cwd()
    (here / "keystone.conf").write_text(SETTINGS.format(here=here))
    from keystone.cmd import bootstrap
    from keystone.server.flask import core

    app = core.initialize_application("public", prepare, [str(here / "keystone.conf")])
    bootstrap.backends.load_backends = lambda: None  # they are there, and may be so only once
    first = bootstrap.Bootstrapper()
    first.admin_password, first.admin_username = "right", "admin"
    first.project_name, first.admin_role_name = "admin", "admin"
    first.service_name, first.region_id = "keystone", "RegionOne"
    first.public_url = first.admin_url = first.internal_url = f"http://{address}:{port}/v3"
    first.bootstrap()
    fill(cloud)
    server = make_server(address, port, app, Threaded, Quiet)
    print("ready", flush=True)
    server.serve_forever()


def prepare():
    """Its keys and tables, once it is configured."""
    import keystone.conf
    from keystone.common import fernet_utils
    from keystone.common.sql import upgrades

    for name in ("fernet_tokens", "fernet_receipts", "credential"):
        keys = fernet_utils.FernetUtils(keystone.conf.CONF[name].key_repository, 2, name)
        keys.create_key_directory()
        keys.initialize_key_repository()
    upgrades.offline_sync_database_to_version()


def fill(cloud):
    """What is there of users, and of the catalogue."""
    from keystone.common import provider_api

    its = provider_api.ProviderAPIs
    domain = "default"
    project = {"id": PROJECT, "name": "demo", "domain_id": domain, "enabled": True}
    its.resource_api.create_project(PROJECT, project)
    roles = {each["name"]: each["id"] for each in its.role_api.list_roles()}
    for name, role in (("me", "member"), ("viewer", "reader")):
        user = {"name": name, "password": "right", "domain_id": domain, "enabled": True}
        made = its.identity_api.create_user(user)
        its.assignment_api.create_grant(roles[role], user_id=made["id"], project_id=PROJECT)
    for kind, path in SERVICES.items():
        its.catalog_api.create_service(kind, {"id": kind, "type": kind, "name": kind, "enabled": True})
        its.catalog_api.create_endpoint(
            kind,
            {
                "id": kind,
                "service_id": kind,
                "interface": "public",
                "region_id": "RegionOne",
                "url": cloud + path,
                "enabled": True,
            },
        )


if __name__ == "__main__":
    address, port, cloud = sys.argv[1:]
    del sys.argv[1:]  # Keystone would read them
    main(address, int(port), cloud)
