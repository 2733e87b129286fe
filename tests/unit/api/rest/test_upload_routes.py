"""Uploads by REST: in pieces that survive, of one team, of the right size. In this process, over ASGI."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import tarfile
import threading
import time
import warnings

import pytest

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, RunChange, Submission
from trainmaster.objects import ObjectStore
from trainmaster.objects.errors import FullStoreError
from trainmaster.service import Service
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.teams.team_volumes import volumes_url
from trainmaster.service.uploads import upload_finishing
from trainmaster.service.uploads.code_uploads import TeamQuotaError
from trainmaster.service.uploads.uploads import PART_BYTES, UNUSED_S, Uploads
from trainmaster.service.users.caller import ForbiddenError, caller
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State
from trainmaster.volumes.packed.head import head_of

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from trainmaster.api.rest.app import make_app, make_state

PIECE = {"content-type": "application/offset+octet-stream"}


class Server:
    """One of the servers of a database and a store."""

    def __init__(self, root, name="one", tokens=None):
        database = f"sqlite:///{root / 'trainmaster.db'}"
        self.service = Service(Home(root / name, root / "cache", f"file://{root}/store", database))
        self.state = make_state(self.service, {"PATH": os.environ["PATH"], "TRAINMASTER_UPLOADS": "30GB"})
        self.browser = TestClient(make_app(self.state), raise_server_exceptions=False)
        self.tokens = tokens or self._teams()

    def _teams(self):
        access = self.state.access
        for team in ("red", "blue"):
            access.make_team(team, None)
        return {team: access.create_token(team, ["read", "run"], team)["token"] for team in ("red", "blue")}

    def ask(self, method, path, who="red", **more):
        headers = {"authorization": f"Bearer {self.tokens[who]}", **more.pop("headers", {})}
        return self.browser.request(method, f"/api/v1/uploads{path}", headers=headers, **more)

    def begin(self, content, name="code.tar", kind="code"):
        body = {"name": name, "size_bytes": len(content), "kind": kind}
        return self.ask("POST", "", json=body).json()["upload"]

    def send(self, upload, offset, content, who="red", **headers):
        headers |= PIECE | {"upload-offset": str(offset)}
        return self.ask("PATCH", f"/{upload}", who, content=content, headers=headers)

    def offset(self, upload):
        return int(self.ask("HEAD", f"/{upload}").headers["upload-offset"])


@pytest.fixture
def server(tmp_path):
    (tmp_path / "one").mkdir()
    found = Server(tmp_path)
    yield found
    found.state.finishing.stop()
    found.service.close()


@pytest.fixture
def other(tmp_path, server):
    (tmp_path / "two").mkdir()
    found = Server(tmp_path, "two", server.tokens)
    yield found
    found.state.finishing.stop()
    found.service.close()


def tar(**files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return packed.getvalue()


def test_pieces_on_two_servers_become_code(server, other):
    content = tar(main=b"print(1)", data=os.urandom(PART_BYTES + 5))
    upload = server.begin(content)
    assert server.ask("POST", f"/{upload}/finish").status_code == 409, "bytes are missing"
    assert server.send(upload, 0, content[:1000]).status_code == 204
    answer = other.send(upload, 1000, content[1000:])
    assert (answer.status_code, answer.headers["upload-offset"]) == (204, str(len(content)))
    assert server.ask("GET", f"/{upload}").json()["state"] == "WHOLE"
    answer = other.ask("POST", f"/{upload}/finish")
    assert (answer.status_code, answer.json()["state"]) == (201, "DONE")
    digest = answer.json()["result"]["code"]
    again = server.ask("POST", f"/{upload}/finish")
    assert again.json()["result"] == {"code": digest}, "a client that asks again is told the same"
    headers = {"authorization": f"Bearer {server.tokens['red']}"}
    assert server.browser.head(f"/api/v1/code/{digest}", headers=headers).status_code == 200
    assert server.ask("GET", "").json() == {"uploads": []}
    assert server.send(upload, len(content), b"x").status_code == 409


def test_a_piece_that_does_not_come_next_is_refused(server):
    upload = server.begin(b"0123456789")
    assert server.send(upload, 0, b"01234").status_code == 204
    for offset in (0, 4, 6, 10):
        answer = server.send(upload, offset, b"x")
        assert (answer.status_code, server.offset(upload)) == (409, 5)
        assert "the next byte is 5" in answer.json()["title"]
    assert server.send(upload, 5, b"567890").status_code == 413
    assert server.send(upload, 5, iter([b"56789", b"0"])).status_code == 413, "also of an unknown length"
    assert server.ask("PATCH", f"/{upload}", content=b"5", headers={"upload-offset": "5"}).status_code == 415
    assert server.send(upload, 5, b"56789").status_code == 204


def test_of_two_connections_one_is_heard(server, monkeypatch):
    """The second sends the same bytes while the first one's are on their way to the store."""
    upload = server.begin(b"0123456789")
    uploads, add = server.state.uploads, Uploads.add

    def slow(self, upload, offset, data):
        monkeypatch.setattr(Uploads, "add", add)
        assert server.send(upload, 0, b"abc").status_code == 204
        return add(self, upload, offset, data)

    monkeypatch.setattr(Uploads, "add", slow)
    assert server.send(upload, 0, b"01234").status_code == 409
    assert server.offset(upload) == 3
    assert server.send(upload, 3, b"3456789").status_code == 204
    path = server.service.home.root / "file"
    uploads.write_to(upload, path)
    assert path.read_bytes() == b"abc3456789"
    assert len(list(uploads._store(upload).list())) == 2, "what was not heard is not kept"


def test_what_was_killed_between_store_and_row_does_not_count(server, tmp_path, monkeypatch):
    upload = server.begin(b"0123456789")
    with monkeypatch.context() as patch:
        patch.setattr("trainmaster.db.uploads.add_part", lambda *_: (_ for _ in ()).throw(SystemError))
        assert server.send(upload, 0, b"wrong").status_code == 500
    assert server.offset(upload) == 0
    assert server.send(upload, 0, b"0123456789").status_code == 204
    server.state.uploads.write_to(upload, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_who_was_killed_while_finishing_is_followed_by_another(server, other, monkeypatch):
    content = tar(main=b"1")
    upload = server.begin(content)
    server.send(upload, 0, content)
    clock = server.service.database.clock_s
    monkeypatch.setattr(server.state.finishing._pool, "submit", lambda *_: None)  # it gets no further
    assert server.ask("POST", f"/{upload}/finish").status_code == 202
    answer = other.ask("POST", f"/{upload}/finish")
    assert (answer.status_code, answer.json()["state"]) == (202, "FINISHING")
    assert other.ask("DELETE", f"/{upload}").status_code == 409
    monkeypatch.setattr(other.service.database, "clock_s", lambda: clock() + 60)
    assert other.ask("GET", f"/{upload}").json()["state"] == "WHOLE"
    assert other.ask("POST", f"/{upload}/finish").json()["state"] == "DONE"


def test_what_waits_for_long_to_be_finished_is_made_once(server, other, monkeypatch):
    content, waiting = tar(main=b"1"), []
    upload = server.begin(content)
    server.send(upload, 0, content)
    finishing, clock = server.state.finishing, server.service.database.clock_s
    with monkeypatch.context() as patched:
        patched.setattr(finishing._pool, "submit", lambda work, *given: waiting.append((work, given)))
        assert server.ask("POST", f"/{upload}/finish").status_code == 202
    monkeypatch.setattr(other.service.database, "clock_s", lambda: clock() + 60)
    assert other.ask("POST", f"/{upload}/finish").json()["state"] == "DONE"
    monkeypatch.setattr(finishing, "_made", lambda *_: pytest.fail("it was made twice"))
    ((work, given),) = waiting
    work(*given)
    assert server.ask("GET", f"/{upload}").json()["state"] == "DONE"


def test_code_is_one_file_and_no_volume(server):
    content = tar(main=b"1")
    one, other = server.begin(content), server.begin(content)
    for upload in (one, other):
        server.send(upload, 0, content)
    for asked in ({"volume": "pets"}, {"uploads": [other]}):
        answer = server.ask("POST", f"/{one}/finish", json=asked)
        assert (answer.status_code, "code is one file" in answer.text) == (422, True)
    assert server.ask("GET", f"/{one}").json()["state"] == "WHOLE"


def test_who_may_only_read_takes_no_upload_away(server):
    upload = server.begin(b"0")
    with pytest.raises(ForbiddenError, match="'run'"):
        server.state.uploads.remove(caller("ann", "red", ["read"]), upload)
    assert server.offset(upload) == 0


def test_other_teams_uploads_are_not_there(server):
    upload = server.begin(b"0123456789")
    for method, path in (("GET", ""), ("HEAD", ""), ("DELETE", ""), ("POST", "/finish")):
        assert server.ask(method, f"/{upload}{path}", "blue").status_code == 404
    assert server.send(upload, 0, b"0", "blue").status_code == 404
    assert server.ask("GET", "", "blue").json() == {"uploads": []}
    assert [each["upload"] for each in server.ask("GET", "").json()["uploads"]] == [upload]
    for path in ("..", "%2e%2e%2fother", "0" * 31, "/etc"):
        assert server.ask("GET", f"/{path}").status_code in (404, 405)


@pytest.mark.parametrize(
    "name", ["", "../x", "/etc/passwd", "a/../../b", "a//b", "a\nb", "a\0b", "..\\x", "x" * 400]
)
def test_names_that_lead_elsewhere_are_refused(server, name):
    answer = server.ask("POST", "", json={"name": name, "size_bytes": 1, "kind": "volume"})
    assert (answer.status_code, "no name" in answer.json()["title"]) == (422, True)
    assert len(answer.json()["title"]) < 200


def test_what_is_too_large_is_refused_before_it_is_read(server):
    def begin(size_bytes, kind="volume", who="red"):
        return server.ask("POST", "", who, json={"name": "x", "size_bytes": size_bytes, "kind": kind})

    assert begin(10**10, "code").status_code == 413
    assert begin(10**15).status_code == 413
    assert begin(-1).status_code == 422
    assert begin(1, "other").status_code == 422
    assert begin(20 * 10**9).status_code == 201
    answer = begin(20 * 10**9)
    assert (answer.status_code, "do not fit" in answer.json()["title"]) == (507, True)
    assert begin(20 * 10**9, who="blue").status_code == 201, "each team has its own room"
    small = begin(5).json()["upload"]
    assert server.send(small, 0, b"12345", **{"content-length": str(10**10)}).status_code == 413
    headers = {"authorization": f"Bearer {server.tokens['red']}", "content-length": str(10**10)}
    for method, path in (("POST", "uploads"), ("POST", "runs"), ("PUT", f"code/{'0' * 64}")):
        answer = server.browser.request(method, f"/api/v1/{path}", headers=headers, content=b"x")
        assert answer.status_code == 413


def test_a_full_disk_is_told_and_what_is_there_stays(server, monkeypatch):
    upload = server.begin(b"0123456789")
    server.send(upload, 0, b"01234")

    def full(*_):
        raise FullStoreError("no space left on device", "Free some space there.")

    with monkeypatch.context() as patch:
        patch.setattr("trainmaster.objects.ObjectStore.put", full)
        answer = server.send(upload, 5, b"56789")
    assert (answer.status_code, answer.json()["hint"]) == (507, "Free some space there.")
    assert server.offset(upload) == 5
    assert server.send(upload, 5, b"56789").status_code == 204


def test_a_bad_archive_is_told_and_kept(server):
    upload = server.begin(b"no archive", "code.zip")
    server.send(upload, 0, b"no archive")
    answer = server.ask("POST", f"/{upload}/finish")
    assert (answer.status_code, "code.zip" in answer.json()["title"]) == (422, True)
    found = server.ask("GET", f"/{upload}").json()
    assert (found["state"], "code.zip" in found["result"]["title"]) == ("FAILED", True)
    assert server.ask("DELETE", f"/{upload}").status_code == 204
    assert server.ask("GET", f"/{upload}").status_code == 404


def test_what_takes_longer_than_a_request_to_fail_is_told_to_the_next_one(server, monkeypatch):
    upload, goes_on = server.begin(b"no archive", "code.zip"), threading.Event()
    server.send(upload, 0, b"no archive")
    made, begun = server.state.finishing._made, []

    def slowly(*given):
        begun.append(given)
        goes_on.wait(60)
        return made(*given)

    monkeypatch.setattr(server.state.finishing, "_made", slowly)
    with monkeypatch.context() as patched:
        patched.setattr("trainmaster.api.rest.uploads._PATIENCE_S", 0.01)
        assert server.ask("POST", f"/{upload}/finish").status_code == 202
    goes_on.set()
    for count in (1, 2):
        answer = server.ask("POST", f"/{upload}/finish")
        assert (answer.status_code, "code.zip" in answer.json()["title"]) == (422, True)
        assert len(begun) == count, "it is told before it is tried again"


def test_clients_of_tus_are_understood(server):
    encoded = base64.b64encode(b"<b>a.csv").decode()
    headers = {"upload-length": "3", "upload-metadata": f"filename {encoded}", "tus-resumable": "1.0.0"}
    answer = server.ask("POST", "", headers=headers)
    assert (answer.status_code, answer.headers["tus-resumable"]) == (201, "1.0.0")
    upload = answer.headers["location"].rpartition("/")[2]
    assert server.send(upload, 0, b"abc").headers["upload-offset"] == "3"
    found = server.ask("GET", f"/{upload}").json()
    assert (found["name"], found["kind"], found["offset"]) == ("<b>a.csv", "volume", 3)
    assert (
        server.ask("POST", "", headers={"upload-length": "3", "upload-metadata": "name ?"}).status_code == 422
    )
    assert server.ask("POST", "").status_code == 422


def test_what_nobody_uses_is_removed(server, tmp_path):
    old, new = server.begin(b"0123456789"), server.begin(b"0")
    server.send(old, 0, b"01234")
    stray = tmp_path / "store" / "uploads" / ("f" * 32)
    stray.mkdir(parents=True)
    (stray / "part").write_text("of an upload that is gone")
    server.state.uploads.collect(time.time())
    assert (server.offset(old), stray.exists()) == (5, False)
    server.state.uploads.collect(time.time() + UNUSED_S + 60)
    for upload in (old, new):
        assert server.ask("GET", f"/{upload}").status_code == 404
    assert not (tmp_path / "store" / "uploads" / old).exists()


# --- volumes --------------------------------------------------------------------------------------------


def upload(server, name, content, who="red"):
    body = {"name": name, "size_bytes": len(content), "kind": "volume"}
    begun = server.ask("POST", "", who, json=body).json()["upload"]
    assert server.send(begun, 0, content, who).status_code == 204
    return begun


def volumes(server, path="", who="red", method="GET"):
    headers = {"authorization": f"Bearer {server.tokens[who]}"}
    return server.browser.request(method, f"/api/v1/volumes{path}", headers=headers)


def made(server, volume, *uploads, who="red", made_by=""):
    body = {"volume": volume, "uploads": list(uploads[1:]), "made_by": made_by}
    return server.ask("POST", f"/{uploads[0]}/finish", who, json=body)


def test_a_version_is_made_by_no_run_of_another_team(server, tmp_path):
    recipe = Recipe.from_text("experiments: {main: {command: 'true'}}", directory=tmp_path).model_dump_json()
    for team in server.tokens:
        names = (f"job-{team}", "job", recipe, "r.yaml", "aws", "code", "file:///s", [("main", 1)])
        server.service.database.create_run(AcceptedRun(*names, submission=Submission("x", team)), 1.0)
    for run in ("job-red", "job-blue", "job-none"):
        assert made(server, "pets", upload(server, "a.txt", run.encode()), made_by=run).status_code == 201
    store = ObjectStore(f"{volumes_url(server.service.home, 'red')}/pets")
    assert [list(head_of(store, number).notes) for number in (1, 2, 3)] == [["made by run job-red"], [], []]


def test_files_become_versions_of_a_teams_volume(server, other):
    first = upload(server, "<b>train.csv", b"x,y\n1,2\n3,4\n"), upload(server, "docs/a.txt", b"hello")
    answer = made(other, "pets", *first)
    assert (answer.status_code, answer.json()["result"]) == (
        201,
        {"volume": "pets", "version": 1, "files": 2, "size_bytes": 17, "tables": 1},
    )
    assert server.ask("GET", f"/{first[1]}").json()["result"]["version"] == 1
    made(server, "pets", upload(server, "pets.tar", tar(**{"cat.txt": b"meow"})))
    (found,) = volumes(server).json()["volumes"]
    assert (found["volume"], found["version"], found["files"]) == ("pets", 2, 1)
    newest = volumes(other, "/pets").json()
    assert ([each["version"] for each in newest["versions"]], newest["version"]) == ([1, 2], 2)
    assert [each["path"] for each in newest["files"]] == ["cat.txt"]
    old = volumes(other, "/pets?version=1").json()
    assert [each["path"] for each in old["files"]] == ["<b>train.csv", "docs/a.txt"]
    (table,) = old["tables"]
    assert (table["rows"], [column["name"] for column in table["columns"]]) == (2, ["x", "y"])
    assert volumes(server, "/pets?version=3").status_code == 404
    assert volumes(server, "/pets?version=1", method="DELETE").status_code == 204
    assert [each["version"] for each in volumes(server, "/pets").json()["versions"]] == [2]
    assert volumes(server, "/pets", method="DELETE").status_code == 422, "not without a word"
    assert volumes(server, "/pets?whole=true", method="DELETE").status_code == 204
    assert volumes(server).json() == {"volumes": []}


def test_a_version_that_a_run_of_the_team_still_needs_stays(server):
    for content in (b"1", b"2"):
        made(server, "pets", upload(server, "a.txt", content))
    url = f"{server.service.home.store_url.rstrip('/')}/teams/red/volumes/pets@1"
    recipe = Recipe.from_text(
        f"name: job\nexperiments: {{main: {{command: x, data: {{p: {{volume: '{url}'}}}}}}}}\n",
        directory=server.service.home.root,
    ).model_dump_json()
    home = {"home": str(server.service.home.root), "home_id": server.service.home.identity()}
    new = AcceptedRun("job-1", "job", recipe, "r.yaml", "local", "code", "file:///s", [("main", 1)],
                      submission=Submission("x", "red"), **home)  # fmt: skip
    lease = server.service.database.create_run(new, 1.0)
    for asked in ("version=1", "whole=true"):
        answer = volumes(server, f"/pets?{asked}", method="DELETE")
        assert (answer.status_code, "job-1, which is not over" in answer.json()["title"]) == (422, True)
    assert volumes(server, "/pets?version=2", method="DELETE").status_code == 204
    ends = RunChange(State.WAITING, State.DONE, EndReason.CANCELLED)
    server.service.database.commit(lease, [ends], 3.0)
    assert volumes(server, "/pets?version=1", method="DELETE").status_code == 204


def test_other_teams_volumes_are_not_there(server):
    made(server, "pets", upload(server, "a.txt", b"hello"))
    assert volumes(server, who="blue").json() == {"volumes": []}
    names = ("pets", "../../red/volumes/pets", "%2e%2e/%2e%2e/red/volumes/pets", "pets@1", "/etc", "s3://b/x")
    for name in names:
        for query, method in (("", "GET"), ("?whole=true", "DELETE"), ("?version=1", "DELETE")):
            answer = volumes(server, f"/{name}{query}", "blue", method)
            assert answer.status_code == 404, (name, answer.text)
    mine = upload(server, "b.txt", b"x")
    theirs = upload(server, "c.txt", b"x", "blue")
    assert made(server, "pets", mine, theirs).status_code == 404
    for name in ("../pets", "/tmp/pets", "file:///tmp/pets", "pets@1", "", "a/../b"):
        answer = made(server, name, mine)
        assert (answer.status_code, "no name of a volume" in answer.json()["title"]) == (422, True)


def test_hostile_archives_make_no_version(server, tmp_path, monkeypatch):
    monkeypatch.setattr(upload_finishing, "_SMALL_BYTES", 1 << 20)
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "../../../trainmaster.db"
        archive.addfile(member)
    bomb = gzip.compress(tar(zeros=bytes(4 << 20)))
    for name, content in (
        ("evil.tar", evil.getvalue()),
        ("up.tar", tar(**{"../out": b"x"})),
        ("bomb.tar.gz", bomb),
        ("no.zip", b"no zip"),
    ):
        answer = made(server, "pets", upload(server, name, content))
        assert (answer.status_code, name in answer.json()["title"]) == (422, True), answer.text
    one, two = upload(server, "a.txt", b"1"), upload(server, "a.txt", b"2")
    assert "twice" in made(server, "pets", one, two).json()["title"]
    one, two = upload(server, "a", b"1"), upload(server, "a/b", b"2")
    assert "twice" in made(server, "pets", one, two).json()["title"]
    assert made(server, "pets", one, upload(server, "a.zip", b"2")).status_code == 422
    assert volumes(server).json() == {"volumes": []}
    assert not list(tmp_path.rglob("out"))


def test_a_team_has_so_much_room_for_volumes(server):
    server.state.finishing._quota_bytes = 20_000
    made(server, "pets", upload(server, "a.txt", os.urandom(9_000)))
    answer = made(server, "more", upload(server, "a.txt", os.urandom(15_000)))
    assert (answer.status_code, "do not fit" in answer.json()["title"]) == (507, True)


def test_a_teams_recipe_names_its_own_volumes_only(server):
    made(server, "pets", upload(server, "a.txt", b"hello"))
    made(server, "digits", upload(server, "a.txt", b"their own", "blue"), who="blue")

    def place(volume, who="red"):
        recipe = {"experiments": {"main": {"command": "x", "data": {"d": {"volume": volume}}}}}
        text = json.dumps({"name": "job", "provider": "aws", **recipe})
        team = server.state.access.by_token(server.tokens[who])
        found = server.state.submissions.read(team, RunRequest(text))
        return found.experiments["main"].data["d"].volume

    store = server.service.home.store_url
    assert place("pets") == place("pets@1") == f"{store}/teams/red/volumes/pets@1"
    assert place("digits") == "built-in:digits", "what ships with a library is everybody's"
    assert place("digits", "blue") == f"{store}/teams/blue/volumes/digits@1"
    for name in (
        "pets@2",
        "other",
        "../../blue/volumes/digits",
        f"{store}/teams/blue/volumes/digits",
        "/tmp",
    ):
        with pytest.raises(UsageError, match=r"experiments\.main\.data\.d\.volume"):
            place(name)


def test_how_much_an_upload_may_have(server):
    def begin(size_bytes, kind="volume"):
        return server.ask("POST", "", json={"name": "a", "size_bytes": size_bytes, "kind": kind}).status_code

    assert begin(50_000 * (4 << 20) + 1) == 413
    assert begin(50_000 * (4 << 20)) == 507, "a part more is too much for any; so much for this team"
    assert begin(30 * 10**9) == 201
    assert begin(1) == 507


def test_a_full_share_is_told_and_an_upload_ends_by_itself_after_a_day(server):
    begun = [server.begin(b"x" * size) for size in (7, 5)]
    found = server.ask("GET", f"/{begun[0]}").json()
    assert found["expires_at"] - found["created_at"] == 86400
    answer = server.ask("POST", "", json={"name": "a", "size_bytes": 30 * 10**9, "kind": "volume"})
    assert (answer.status_code, answer.json()["title"]) == (
        507,
        "30,000,000,000 bytes do not fit: 2 uploads have 12 of 30,000,000,000 bytes, and may be 1000",
    )


def test_what_a_version_may_become(server, tmp_path, monkeypatch):
    """Of the team's share, of this disk, and of what was sent."""
    finishing, store = server.state.finishing, tmp_path / "volumes"
    store.mkdir()
    (store / "chunk").write_bytes(b"x" * 100)
    monkeypatch.setattr(finishing, "_quota_bytes", 1000)
    here = [10**12]
    monkeypatch.setattr(upload_finishing, "room_bytes", lambda *_: here[0])

    def most(packed_bytes, team=None):
        limits = finishing._room(team, f"file://{store}", packed_bytes, tmp_path)
        assert limits.most_entries == 2_000_000
        return limits.most_bytes

    assert most(10) == 2 << 30, "small things may be packed as they like"
    assert most(10**9) == 100 * 10**9
    assert most(10**10) == 10**12 - 10**10, "the disk"
    assert most(900, "red") == most(10, "red") == 900, "the share of the team: not twice what is there"
    with pytest.raises(TeamQuotaError, match="volumes take 100 of 1,000"):
        most(901, "red")
    here[0] = 200
    assert most(100) == 100
    with pytest.raises(FullStoreError, match="twice their size"):
        most(101)


def test_so_many_uploads_become_one_version(server):
    row = {"team": "red", "kind": "volume", "name": "a.txt"}
    assert server.state.finishing._maker([row] * 1000, "pets", "")
    for rows in ([row] * 1001, [row, {**row, "team": "blue"}], [row, {**row, "kind": "code"}]):
        with pytest.raises(UsageError, match="do not belong together"):
            server.state.finishing._maker(rows, "pets", "")
