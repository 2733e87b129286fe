"""What all clients keep of `ClientProtocol.storage`: what takes room, and how it goes."""

from __future__ import annotations

import json

from client_contract_home import ContractHome, refusal
from trainmaster.api import ClientProtocol
from trainmaster.api.embedded import EmbeddedClient
from trainmaster.artifacts import publish


class ClientStorageContract(ContractHome):
    """Inherited by the tests of each `ClientProtocol`."""

    def test_runs_that_are_over_are_removed_and_what_stays_says_why(
        self, at_home: EmbeddedClient, client: ClientProtocol
    ) -> None:
        """What would go is told with sizes; a name keeps a run's record; what goes on stays."""
        named, plain = "job-aaaa000001", "job-bbbb000002"
        client.registry.register(f"{named}/main/0", "digits", "production")
        told = client.storage.remove_runs([named, plain], dry_run=True)
        assert [each["outcome"] for each in told["runs"]] == ["TRIMMED", "REMOVED"]
        assert told["bytes"] == sum(each["bytes"] for each in told["runs"]) > 0
        assert [each["run"] for each in client.listed()["runs"]] == [plain, named]
        assert json.dumps(client.storage.remove_runs([named, plain]) | {"dry_run": True}) == json.dumps(told)
        assert [each["run"] for each in client.listed()["runs"]] == [named]
        assert "digits@production" in told["runs"][0]["kept"][0]["why"]
        assert client.registry.version("digits@production")["run"] == named
        assert client.storage.remove_runs([plain])["runs"][0]["bytes"] == 0  # as of a repeated request
        assert client.storage.remove_runs(older_than_s=1e10)["runs"] == []
        for wrong in ({}, {"runs": [named], "older_than_s": 1.0}, {"runs": ["nosuch-0000000000"]}):
            assert refusal(lambda wrong=wrong: client.storage.remove_runs(**wrong)) == refusal(  # type: ignore[misc]
                lambda wrong=wrong: at_home.storage.remove_runs(**wrong)  # type: ignore[misc]
            )
            assert refusal(lambda wrong=wrong: client.storage.remove_runs(**wrong)) != "none"  # type: ignore[misc]

    def test_what_takes_room_is_told_and_what_nothing_needs_goes(
        self, at_home: EmbeddedClient, client: ClientProtocol
    ) -> None:
        """Runs with the largest first; of a kind that is none, and of what is nothing, the same is said."""
        found = client.storage.usage(1)
        assert json.dumps(found["runs"]) == json.dumps(at_home.storage.usage(1)["runs"])
        assert found["more_runs"] == 1
        assert {"models", "files"} <= {each["kind"] for each in found["kinds"]}
        stray = at_home._service.home.model_uri("job-aaaa000001", "main", 0, 2)
        publish({"": at_home._service.home.root / "left-job-aaaa000001"}, stray, kind="model")
        told = client.storage.prune(["models"], dry_run=True)
        assert told["kinds"]["models"]["names"] == [stray]
        assert client.storage.prune(["models"])["bytes"] == told["bytes"] > 0
        assert client.storage.prune(["models"])["kinds"]["models"]["count"] == 0
        assert refusal(lambda: client.storage.prune(["nosuch"])).startswith("UsageError: 'nosuch' is")
