"""What all clients must keep: inherit `ClientContract` and give it a ``client`` fixture.

What they keep of one noun is in a file of its own beside it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from client_contract_home import RECIPE, ContractHome, refusal
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.api import ClientProtocol, LogQuery, RunPlan
from trainmaster.api.embedded import EmbeddedClient
from trainmaster.api.protocol_parts import RegistryProtocol
from trainmaster.control.task.layout import Home
from trainmaster.db import NewMeasurement
from trainmaster.service import OfferFilter, RecommendQuery
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.workflows.triggers import Triggers
from trainmaster.spec import Recipe, Strategy
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError
from trainmaster.spec.states import EndReason, State
from trainmaster.testing.waits import until

#: Listens, says where, and says back in capitals what it hears.
_SHOUT = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0), backlog=50)
print(listener.getsockname()[1], flush=True)
def serve(stream):
    with stream:
        while data := stream.recv(65536):
            stream.sendall(data.upper())
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def last(stream: Any) -> Any:
    """What is told at last."""
    return [*stream][-1]


class ClientContract(ContractHome):
    """Inherited by the tests of each `ClientProtocol`: a home of its own with two runs that have ended."""

    def test_runs_are_listed_found_and_shown(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """Lists, lines and states are those of the home, to the byte."""
        for limit, after in ((None, None), (1, None), (5, None), (1, "job-bbbb000002")):
            assert json.dumps(client.listed(limit, after)) == json.dumps(at_home.listed(limit, after))
        run = client.resolve("latest")
        assert [run, client.resolve("job-a"), client.resolve(run)] == [
            "job-bbbb000002",
            "job-aaaa000001",
            run,
        ]
        assert client.brief(run) == at_home.brief(run)
        assert json.dumps(client.status(run).json) == json.dumps(at_home.status(run).json)
        assert client.status(run) == at_home.status(run)
        assert client.highlights(run) == at_home.highlights(run)
        assert client.score() == at_home.score()
        seen, mine = client.overview(), at_home.overview()
        for found in (seen, mine):
            found.pop("since")
            found["month"].pop("pace_usd")
        assert json.dumps(seen) == json.dumps(mine)
        assert client.score_line("local") == at_home.score_line("local")

    def test_labels_and_notes_are_written_and_looked_for(
        self, at_home: EmbeddedClient, client: ClientProtocol
    ) -> None:
        """What one writes the other shows and finds; what is wrong is refused by the same words."""
        run = "job-aaaa000001"
        line = client.describe(run, {"project": "x", "owner": "ü"}, "two\nlines")
        assert line == client.brief(run) == at_home.brief(run)
        assert client.describe(run, {"owner": None, "n": "1"})["labels"] == {"n": "1", "project": "x"}
        assert client.status(run).json["note"] == "two\nlines"
        for where in ("label:project = x", "loss < 0.6 and run ~ aaaa", "note ~ lines"):
            assert client.listed(5, where=where) == at_home.listed(5, where=where)
            assert [row["run"] for row in client.listed(where=where)["runs"]] == [run]
        assert client.listed(1, where="loss < 0.6")["older"] == 1
        assert client.listed(5, where="loss < 0.1") == {"runs": [], "older": 0}
        for sort in ("best", "run", "-run", "metric:loss"):
            assert client.listed(1, where="loss", sort=sort) == at_home.listed(1, where="loss", sort=sort)
            assert client.listed(sort=sort) == at_home.listed(sort=sort)
        with pytest.raises(UsageError, match="no column 'nosuch'"):
            client.listed(sort="nosuch")
        for wrong in ("loss <", "state = NONE"):
            with pytest.raises(UsageError) as here:
                at_home.listed(where=wrong)
            with pytest.raises(UsageError) as there:
                client.listed(where=wrong)
            assert str(there.value) == str(here.value)
        for labels, note in (({"a b": "x"}, None), ({"a": "x" * 300}, None), ({}, "x" * 5000)):
            with pytest.raises(UsageError):
                client.describe(run, labels, note)
        with pytest.raises(NotFoundError, match="nosuch"):
            client.describe("nosuch", {"a": "b"})
        assert "note" not in client.describe(run, {}, "")

    def test_what_a_run_would_do_is_told_as_at_home(
        self, at_home: EmbeddedClient, client: ClientProtocol, tmp_path: Path
    ) -> None:
        """Nothing of it is done, nor is its code sent."""
        code = tmp_path / "checked"
        code.mkdir()
        recipe = Recipe.from_text(RECIPE, directory=code)
        assert client.check(recipe) == at_home.check(recipe)
        wrong = Recipe.from_text(
            "experiments: {a: {command: make, data: {x: {dir: ../nosuch}}}}", directory=code
        )
        for each in (client, at_home):
            with pytest.raises(UsageError, match=r"there is no .*nosuch"):
                each.check(wrong)
        keyless = Recipe.from_text(
            "experiments: {a: {command: make, secrets: [TRAINMASTER_NO_SUCH_KEY]}}", directory=code
        )
        for each in (client, at_home):
            with pytest.raises(UsageError, match="no value for TRAINMASTER_NO_SUCH_KEY"):
                each.check(keyless)
        before = client.listed()
        assert client.dry_run(recipe) == at_home.dry_run(recipe)
        assert client.dry_run(recipe)["processes"][0]["command"].startswith("echo hello")
        assert client.listed() == before

    def test_what_is_configured_is_told(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """But to whom a home tells something, which is its owner's business."""
        told = {each["key"]: each["value"] for each in at_home.configuration(".") if each["key"] != "notify"}
        assert {e["key"]: e["value"] for e in client.configuration(".") if e["key"] != "notify"} == told

    def test_what_runs_have_cost_is_as_at_home(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """By each group, of some runs; what means nothing is refused."""
        for by in ("month", "provider", "user", "team", "run", "label:a"):
            assert client.cost(by) == at_home.cost(by)
        assert client.cost("run", where="run ~ aaaa")["rows"][0]["key"] == "job-aaaa000001"
        assert client.cost("month", "1d")["rows"] == []
        with pytest.raises(UsageError, match="by 'colour'"):
            client.cost("colour")
        assert client.wallet() is None
        assert client.curves("job-aaaa000001") == at_home.curves("job-aaaa000001") != []
        assert client.curves("job-aaaa000001", ["nosuch"]) == []
        assert client.compare(["job-aaaa000001"]) == at_home.compare(["job-aaaa000001"])
        with pytest.raises(UsageError, match="9 runs to compare"):
            at_home.compare([f"job-{number}" for number in range(9)])

    def test_how_many_machines_is_recommended_as_at_home(
        self, at_home: EmbeddedClient, client: ClientProtocol
    ) -> None:
        """By the published table and by what was measured of a run, with its latency; refusals, too."""
        for workers, latency_ms, time_s in ((1, 0.0, 0.3), (2, 20.0, 0.2), (4, 20.0, 0.25)):
            point = Point(Strategy.ALLREDUCE, workers, nodes=workers, local_batch=64 / workers)
            point = replace(point, latency_ms=latency_ms, step_time_s=time_s)
            measured = Measurement(point).to_json()
            row = NewMeasurement(f"m-{workers}", "f", "s", "main", "job-aaaa000001", measured, 1.0)
            at_home._service.database.add_measurement(row)

        def answer(who: ClientProtocol, profile: str, **wish: Any) -> Any:
            try:
                return who.recommend(RecommendQuery(**wish), profile)
            except TrainmasterError as error:
                return str(error)

        found = []
        for profile, wish in (
            ("anwar-2021", {"batch": 64000, "usd_per_hour": (0.1, 0.2), "max_usd_per_hour": 0.3}),
            ("job-aaaa000001", {"batch": 64, "latency_ms": 20, "rule": "lookup", "max_workers": 3}),
            ("job-aaaa000001/main", {"batch": 64, "alpha": 0.5, "beta": 2.0, "epochs": 2.5}),
            ("job-aaaa000001", {"batch": 64, "latency_ms": 60, "rule": "lookup"}),
            ("job-bbbb000002", {"batch": 64}),
            ("none", {"batch": 64}),
        ):
            found.append(answer(client, profile, **wish))
            assert found[-1] == answer(at_home, profile, **wish)
        assert [each["machines"] for each in found[:2]] == [2, 2]
        assert "nearest measured row is batch 64 at 20 ms" in found[3]

    def test_what_is_not_there_is_said_as_at_home(
        self, at_home: EmbeddedClient, client: ClientProtocol, tmp_path: Path
    ) -> None:
        """The same error, message and hint."""

        def refusals(who: ClientProtocol) -> list[str]:
            asked = (
                lambda: who.picture("none"),
                lambda: who.targets("none"),
                lambda: who.resolve("job"),
                lambda: who.resolve("no/such run"),
                lambda: who.brief("none"),
                lambda: who.status("none"),
                lambda: who.find_model("none"),
                lambda: who.find_model("latest/other"),
                lambda: who.fetch_model("latest", Path(__file__).parent),
                lambda: list(who.logs("none", LogQuery())),
                lambda: list(who.logs("job-aaaa000001", LogQuery(experiment="other"))),
                lambda: list(who.logs("job-aaaa000001", LogQuery(task=7))),
                lambda: list(who.logs("job-aaaa000001", LogQuery(member="ps-9"))),
                lambda: list(who.logs("job-aaaa000001", LogQuery(attempt=9))),
                lambda: list(who.logs("job-aaaa000001", LogQuery(follow=True, attempt=9))),
                lambda: list(who.logs("job-aaaa000001", LogQuery(grep="("))),
                lambda: list(who.logs("job-aaaa000001", LogQuery(since="soon"))),
                lambda: list(who.logs("job-aaaa000001", LogQuery(system=True))),
                lambda: who.fetch_system_log("job-aaaa000001", "ps-9"),
                lambda: who.search_logs("step", 9, since="soon"),
                lambda: who.search_logs("step", 9, "none"),
                lambda: who.listed(0),
                lambda: who.accept_run(""),
                lambda: who.cancel("none"),
                lambda: who.cancel_tasks("none", ["main/0"]),
                lambda: who.cancel_tasks("job-aaaa000001", ["main/7"]),
                lambda: who.take_run("none"),
                lambda: who.export("none", tmp_path / "capsule"),
                lambda: who.export("job-aaaa000001", tmp_path / "capsule"),
                lambda: who.export("job-aaaa000001", Path(__file__)),
            )
            return [refusal(ask) for ask in asked]

        assert refusals(client) == refusals(at_home)

    @pytest.mark.parametrize("follow", [False, True])
    def test_a_member_that_has_said_nothing_is_a_member(
        self, home: Home, at_home: EmbeddedClient, client: ClientProtocol, *, follow: bool
    ) -> None:
        """Its log is empty; there is no other one."""
        run = "job-aaaa000001"
        (log,) = home.root.glob(f"runs/{run}/**/worker-0.log")
        log.unlink()
        for who in (client, at_home):
            assert [*who.logs(run, LogQuery(follow=follow, member="worker-0"))] == []
            with pytest.raises(NotFoundError, match="no member 'worker-1'"):
                list(who.logs(run, LogQuery(follow=follow, member="worker-1")))

    def test_what_tasks_left_is_read(
        self, at_home: EmbeddedClient, client: ClientProtocol, tmp_path: Path
    ) -> None:
        """Logs, points, events and models, byte by byte."""
        run = "job-aaaa000001"
        queries = [
            LogQuery(),
            LogQuery(follow=True),
            LogQuery(tail=1),
            LogQuery(follow=True, tail=2),
            LogQuery(grep="[13]$"),
            LogQuery(grep="step", tail=2, experiment="main", task=0, member="worker-0"),
            LogQuery(follow=True, grep="2"),
            LogQuery(since="1h"),
            LogQuery(attempt=1),
            LogQuery(follow=True, attempt=1),
            LogQuery(follow=True, since="1h"),
            LogQuery(follow=True, since="5m", tail=1, member="worker-0"),
        ]
        for query in queries:
            assert b"".join(client.logs(run, query)) == b"".join(at_home.logs(run, query)), query
        assert client.search_logs("STEP", 3) == at_home.search_logs("STEP", 3)
        assert {each["run"] for each in client.search_logs("step", 9)["lines"]} >= {run}
        assert client.fetch_system_log(run, "worker-0").partition("==>")[1]
        query = LogQuery(system=True, grep="dmesg")
        assert b"".join(client.logs(run, query)) == b"".join(at_home.logs(run, query)) != b""
        assert client.metrics(run) == at_home.metrics(run)
        assert [row["loss"] for row in client.metrics(run, "main", 0)] == [1, 0.5]
        assert client.picture(run).curves == at_home.picture(run).curves
        assert client.picture(run).searches == []
        assert client.targets(run) == at_home.targets(run) == []
        assert client.events(run) == at_home.events(run)
        assert client.events(run, client.events(run)[-1].id) == []
        shown = [asdict(model) for model in client.models()]
        assert json.dumps(shown) == json.dumps([asdict(model) for model in at_home.models()])
        assert [model.run for model in client.models(run)] == [run]
        assert client.find_model("job-a/main/0") == at_home.find_model("job-a")
        assert client.fetch_model("job-a", tmp_path / "one") == at_home.fetch_model("job-a", tmp_path / "two")
        client.models(run)[0].download(tmp_path / "three")
        for place in ("one", "two", "three"):
            found = tmp_path / place / "deep" / "weights ü.bin"
            assert found.read_bytes() == (tmp_path / place / "newest").read_bytes() == bytes(range(256))
            assert found.stat().st_mode & 0o777 == 0o755

    def test_damage_of_models_is_found(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """In one run, or in all that there are; the caller is told what it would be told at home."""
        runs = ["job-aaaa000001", "job-bbbb000002"]
        assert client.check_models() == at_home.check_models()
        assert (client.check_models()["models"], client.check_models()["damaged"]) == (2, [])
        place = Path(at_home.find_model(runs[0]).removeprefix("file://"))
        lost = next(file for file in place.rglob("*") if file.is_file() and "weights" in file.name)
        lost.unlink()
        assert client.check_models(runs) == at_home.check_models(runs)
        assert client.check_models(runs, is_deep=True) == at_home.check_models(runs, is_deep=True)
        assert [each["run"] for each in client.check_models()["damaged"]] == [runs[0]]
        assert client.check_models(runs[1:])["damaged"] == []
        for who in (client, at_home):
            with pytest.raises(NotFoundError):
                who.check_models(["none"])

    def test_models_get_names_and_aliases(
        self, at_home: EmbeddedClient, client: ClientProtocol, tmp_path: Path
    ) -> None:
        """What a registry answers is what the home's does, and what it refuses, too."""
        ours, theirs = at_home.registry, client.registry
        for number, run in enumerate(("job-aaaa000001", "job-bbbb000002"), 1):
            made = theirs.register(f"{run}/main/0", "digits", "production", {"n": str(number)})
            assert (made["version"], made["new"]) == (number, True)
        assert theirs.promote("digits@1", "staging", None)["moved"]
        assert theirs.rollback("digits@production")["version"] == 1
        theirs.describe("digits", "handwritten", {"kind": "mlp"})
        assert json.dumps(theirs.models()) == json.dumps(ours.models())
        assert json.dumps(theirs.show("digits")) == json.dumps(ours.show("digits"))
        for text in ("digits", "digits@1", "digits@production", "digits@newest"):
            assert theirs.version(text) == ours.version(text)
        assert theirs.diff("digits@1", "job-b") == ours.diff("digits@1", "job-b")
        assert client.fetch_model(ours.version("digits@2")["model"], tmp_path / "got").files == 1

        def refusals(who: RegistryProtocol) -> list[str]:
            asked = (
                lambda: who.version("other"),
                lambda: who.version("digits@9"),
                lambda: who.version("digits@stagin"),
                lambda: who.version("a b"),
                lambda: who.show("digit"),
                lambda: who.register("job-aaaa000001", "a/b"),
                lambda: who.register("none", "digits"),
                lambda: who.promote("digits@2", "7"),
                lambda: who.promote("digits@2", "production", 2),
                lambda: who.rollback("digits@2"),
                lambda: who.remove("digits@1"),
                lambda: who.diff("digits@1", "none"),
            )
            return [refusal(ask) for ask in asked]

        # At home the error is of a more exact type.
        said = [each.partition(": ")[2] for each in refusals(theirs)]
        assert said == [each.partition(": ")[2] for each in refusals(ours)]
        theirs.remove_alias("digits@staging")
        theirs.remove("digits@2")
        assert [each["version"] for each in ours.show("digits")["versions"]] == [1]

    def test_services_are_the_same(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """What a service is; where it is asked, each says for itself."""
        _serve(at_home, "job-aaaa000001")
        assert [each["name"] for each in client.services.listed()] == ["digits"]
        theirs, ours = client.services.show("digits"), at_home.services.show("digits")
        own = ("url", "measured")
        assert {k: v for k, v in theirs.items() if k not in own} == {
            k: v for k, v in ours.items() if k not in own
        }
        assert client.services.url("digits").endswith("/services/digits/")
        for who in (client, at_home):
            with pytest.raises(NotFoundError, match="there is no service 'letters'"):
                who.services.show("letters")

    def test_what_is_over_stays(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """Nothing is left to be driven, cancelled or saved."""
        run = "job-aaaa000001"
        client.cancel(run)
        [task] = client.cancel_tasks(run, ["0"])
        assert (task["experiment"], task["task"], task["reason"]) == ("main", 0, "SUCCEEDED")
        assert client.take_run(run) is None
        assert client.save_models(run) == []
        assert client.deliver_left(run) == ""
        (seen,) = client.watch_run(run)
        assert (seen.events, seen.brief["state"], seen.rents) == ((), "DONE", False)
        assert client.status(run) == at_home.status(run)

    def test_offers_are_those_of_the_home(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """Filtered, sorted and counted there."""
        wishes = OfferFilter(gpu="v100", provider="aws", max_price_usd_per_hour=9.0)
        for sort, limit in (("price", 3), ("memory", None)):
            found = client.offers(wishes, "builtin", sort, limit)
            right = at_home.offers(wishes, "builtin", sort, limit)
            assert json.dumps(found.as_dict(with_refused=False)) == json.dumps(
                right.as_dict(with_refused=False)
            )
            assert found.offers == right.offers
        with pytest.raises(UsageError, match="sorted by 'colour'"):
            client.offers(wishes, "builtin", "colour")

    def test_views_are_saved_and_forgotten(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """What is saved by the one is found by the other, with the condition that it is."""
        kept = client.views.put("mine", "state=DONE&where=loss+%3C+1&sort=-cost&page=3")
        assert kept == "state=DONE&where=loss+%3C+1&sort=-cost"
        (found,) = client.views.listed()
        assert (found, found["where"]) == (at_home.views.listed()[0], 'state = "DONE" and (loss < 1)')
        assert client.listed(where=found["where"]) == at_home.listed(where=found["where"])
        client.views.remove("mine")
        with pytest.raises(NotFoundError):
            client.views.remove("mine")

    def test_workflows_are_looked_after(
        self, monkeypatch: pytest.MonkeyPatch, at_home: EmbeddedClient, client: ClientProtocol
    ) -> None:
        """Those that a server of the home keeps, whoever asks."""
        monkeypatch.setattr(Triggers, "look", lambda _: None)  # nothing runs
        home, text = at_home.workflows, "name: nightly\non: [webhook, {volume: pets}]\n"
        request = RunRequest(text + "experiments: {main: {command: 'true'}}\n")
        home.keep(request)
        assert client.workflows.listed() == home.listed()
        assert client.workflows.pause("nightly")["state"] == "PAUSED"
        assert client.workflows.show("nightly") == home.show("nightly")
        assert client.workflows.rotate("nightly")["secret"] != client.workflows.rotate("nightly")["secret"]
        assert client.workflows.resume("nightly")["state"] == "ENABLED"
        assert len(client.workflows.trigger("nightly")["history"]) == 1
        client.workflows.remove("nightly")
        assert client.workflows.listed() == home.listed() == []
        with pytest.raises(NotFoundError, match="no workflow 'nightly'"):
            client.workflows.trigger("nightly")
        with pytest.raises(TrainmasterError):
            client.workflows.register("none")

    def test_nothing_is_rented(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """Nothing can be given back."""
        assert client.clusters() == at_home.clusters() == []
        assert last(client.end_clusters(None)) == []
        with pytest.raises(NotFoundError, match="no cluster"):
            last(client.end_clusters(["job-aaaa000001/main"]))

    def test_there_are_no_images(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """Machines that stay need none, and what is not there is removed."""
        assert client.images.listed() == at_home.images.listed() == []
        assert client.images.remove("ami-0a1b") == []
        with pytest.raises(UsageError, match="hosts makes no images"):
            client.images.listed("hosts")

    def test_a_command_runs_where_a_member_works(
        self, at_home: EmbeddedClient, client: ClientProtocol, tmp_path: Path
    ) -> None:
        """In the run's code: its input, output, errors and exit code; nothing is there of another member."""
        run = "job-aaaa000001"
        code = at_home.directory / "runs" / run / "code"
        code.mkdir(parents=True)
        (code / "there.txt").write_text("yes")
        line = "cat there.txt -; echo; echo bad >&2; exit 3"
        given, said, wrong = tmp_path / "given", tmp_path / "said", tmp_path / "wrong"
        given.write_bytes(bytes(range(256)) * 4096)
        with given.open("rb") as stdin, said.open("wb") as stdout, wrong.open("wb") as stderr:
            files = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            assert client.execute(run, None, [line], files) == 3
            assert client.execute(run, "worker-0", ["sh", "-c", "kill -9 $$"], files) == 137
        assert said.read_bytes() == b"yes" + given.read_bytes() + b"\n"
        assert wrong.read_text() == "bad\n"
        for who in (client, at_home):
            with pytest.raises(NotFoundError, match="worker-7"):
                who.execute(run, "worker-7", ["true"])
            with pytest.raises(NotFoundError):
                who.execute("none", None, ["true"])

    def test_a_port_of_a_member_is_reached(self, at_home: EmbeddedClient, client: ClientProtocol) -> None:
        """By many at once, each side ending when it has said all; a port of others is closed."""
        run, told = "job-aaaa000001", list[str]()
        environ = {**os.environ, "TRAINMASTER_RUN": run}
        environ |= {"TRAINMASTER_ROLE": "worker", "TRAINMASTER_INDEX": "0"}
        with (
            socket.create_server(("127.0.0.1", 0)) as others,
            subprocess.Popen([sys.executable, "-c", _SHOUT], env=environ, stdout=subprocess.PIPE) as shouts,
        ):
            assert shouts.stdout is not None
            port = int(shouts.stdout.readline())
            try:
                with client.forward(run, "worker-0", port, 0, told.append) as found:
                    parts = [bytes([65 + number]) * 300_000 for number in range(5)]
                    with ThreadPoolExecutor(5) as pool:
                        assert list(pool.map(lambda part: _ask(found.port, part.lower()), parts)) == parts
                    with pytest.raises(UsageError, match=str(found.port)):
                        client.forward(run, None, port, found.port, told.append)
                assert told == []
                closed = others.getsockname()[1]
                with client.forward(run, None, closed, 0, told.append) as refused:
                    assert _ask(refused.port, b"x") == b""
                    until(lambda: len(told) == 2, "it is told, also of the first look")
                assert all(str(closed) in line for line in told)
                with pytest.raises(NotFoundError, match="worker-7"):
                    client.forward(run, "worker-7", port, 0, told.append)
            finally:
                shouts.kill()


def _say(stream: socket.socket, text: bytes) -> None:
    with suppress(OSError):  # without a listener it may be closed before all is said
        stream.sendall(text)
        stream.shutdown(socket.SHUT_WR)


def _ask(port: int, text: bytes) -> bytes:
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), 60) as stream, suppress(ConnectionError):
        sending = threading.Thread(target=_say, args=(stream, text))
        sending.start()
        while piece := stream.recv(1 << 16):
            answer += piece
        sending.join()
    return bytes(answer)


class RunningClientContract:
    """The same of runs that go on: the tests give a ``client`` whose home is empty and runs them itself."""

    def test_a_run_is_planned_accepted_and_seen_to_its_end(
        self, client: ClientProtocol, tmp_path: Path
    ) -> None:
        """The code goes where the run is, with what it includes; its output is told; the next one ends."""
        from trainmaster.service.driving.run_news import ExperimentMoved, RunNews

        project = tmp_path / "project"
        project.mkdir()
        (project / "more.txt").write_text("more\n")
        (project / ".gitignore").write_text("*.txt\n")
        (project / "other.txt").write_text("other\n")
        (project / "recipe.yaml").write_text(RECIPE)
        changed = {"experiments.main.env.GREETING": "ho: ho", "code.include": ["more.*"]}
        recipe = Recipe.read(project, overrides=changed)
        planned = [*client.plan_run(recipe, str(project / "recipe.yaml"))]
        assert [each for each in planned if isinstance(each, str)] == [
            "note: not sent, as .gitignore says: 1 file, 6 bytes: other.txt (6 bytes) "
            "(`code: {include: [other.txt]}` sends it)"
        ]
        plan = planned[-1]
        assert isinstance(plan, RunPlan)
        assert (plan.most_usd_per_hour, plan.provider, plan.quote) == (0.0, "local", None)
        run = client.accept_run(plan.id).run
        told = list(client.drive_run(run, 60.0))
        lines = [each for each in told if isinstance(each, str)]
        lines += [line for each in told if isinstance(each, RunNews) for line in _output(each)]
        assert lines == ["hello", "more"]
        news = [each for each in told if isinstance(each, RunNews)]
        moved = [each for one in news for each in one.happened if isinstance(each, ExperimentMoved)]
        assert [(each.state, each.reason, each.total) for each in moved] == [
            (State.RUNNING, None, 1),
            (State.DONE, EndReason.SUCCEEDED, 1),
        ]
        assert news[-1].is_over
        assert client.status(run).reason is EndReason.SUCCEEDED
        assert list(client.watch_run(run))[-1].brief["reason"] == "SUCCEEDED"
        waits = Recipe.from_text("name: job\nexperiments: {main: {command: sleep 600}}", directory=project)
        second = client.accept_run(last(client.plan_run(waits, str(project / "recipe.yaml"))).id)
        client.detach_run(second.run)
        client.cancel(second.run)
        assert [seen.brief["reason"] for seen in client.watch_run(second.run)][-1] == "CANCELLED"


def _output(news: Any) -> list[str]:
    return [line for each in news.happened for line in getattr(each, "output", ())]


def _serve(client: EmbeddedClient, run: str) -> None:
    """Have a run be a service, as its driver would."""
    from trainmaster.db.endpoint_changes import NewEndpoint, registering

    database = client._service.database
    accept = registering([NewEndpoint("main", "digits", "digits@1")], run, None, 1.0, lambda _: None)
    database.write(lambda connection, _: accept(connection))
