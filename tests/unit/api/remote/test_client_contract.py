"""Both clients keep one contract: the one of a home, and the one of a server of that home over TCP."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from served_tcp import serving

from administration_contract import AdministrationContract
from client_contract import ClientContract
from client_contract_recipes import ClientRecipesContract
from client_contract_storage import ClientStorageContract
from trainmaster.api.administration import HomeAdministration
from trainmaster.api.remote.protocol_parts import RemoteAdministration
from trainmaster.api.remote.remote import RemoteClient
from trainmaster.control.task.layout import Home
from trainmaster.service import Service


class TestEmbedded(ClientContract, ClientRecipesContract, ClientStorageContract):
    @pytest.fixture
    def client(self, at_home):
        return at_home


class TestRemote(ClientContract, ClientRecipesContract, ClientStorageContract):
    @pytest.fixture
    def client(self, home, at_home):
        with serving(home, ["read", "run"]) as connection:
            yield RemoteClient(connection)


class TestHomeAdministration(AdministrationContract):
    @pytest.fixture
    def at_home(self, tmp_path):
        home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/t.db")
        service = Service(home)
        yield HomeAdministration(service)
        service.close()

    @pytest.fixture
    def administration(self, at_home):
        return at_home


class TestRemoteAdministration(TestHomeAdministration):
    @pytest.fixture
    def administration(self, at_home):
        with serving(at_home._service.home, ["admin"]) as connection:
            yield RemoteAdministration(connection)
