"""Another key while servers go on: whatever is killed when, all that is sealed can be opened."""

from __future__ import annotations

import os
import re
import time

import pytest
import sqlalchemy as sa

from trainmaster.db import AcceptedRun, Database, run_files, sealed
from trainmaster.db import tables as t
from trainmaster.db.run_files import private_place
from trainmaster.service.driving.encryption import SealedError, SealingKey
from trainmaster.service.driving.key_rotation import KINDS, REST_S, KeyRotation
from trainmaster.service.on_cluster.assignment import key_of
from trainmaster.service.teams.team_secrets import TeamSecrets
from trainmaster.service.users.access import Access
from trainmaster.spec.errors import NotFoundError, UsageError

NAMES = [f"KEY_{number}" for number in range(5)]
NEW = AcceptedRun("r-1", "r", "{}", "r.yaml", "aws", "code", "file:///s", [("main", 1)], home_id="h")


class KilledError(BaseException):
    """As `kill -9`: nothing catches it."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").new_url()
    else:
        url = f"sqlite:///{tmp_path / 't.db'}"
    found = Database(url)
    Access(found).make_team("red", None)
    yield found
    found.close()


@pytest.fixture
def kept(database, tmp_path):
    """Five secrets of a team, and two of a run."""
    lease = database.create_run(NEW, 1.0)
    key = SealingKey.of(tmp_path, {})
    for name in NAMES:
        TeamSecrets(database, tmp_path, {}).put("red", name, name.lower(), "ann")
    for name in ("secrets", "clusters/c-1/id_ed25519"):
        run_files.put_private(database, lease, {name: key.seal(name.encode(), private_place("r-1", name))})
    return tmp_path


def opened(database, root):
    """Everything, as a server opens it."""
    found = TeamSecrets(database, root, {}).values("red", NAMES)
    key = SealingKey.of(root, {})
    for name, value in run_files.private(database, "r-1").items():
        found[name] = key.open(value, private_place("r-1", name)).decode()
    return found


ALL = {**{name: name.lower() for name in NAMES}, "secrets": "secrets"}
ALL["clusters/c-1/id_ed25519"] = "clusters/c-1/id_ed25519"


def rotated(rotation):
    """A rotation as one server does it, or several."""
    try:
        return rotation.rotate()
    except UsageError:
        return rotation.rotate(rotation.add())


def test_all_that_is_sealed_has_another_key(database, kept):
    rotation = KeyRotation(database, kept, {})
    (before,) = rotation.listed()["keys"]
    found = rotated(rotation)
    assert (found.values, found.is_new, found.lost) == (7, True, ())
    new, old = rotation.listed()["keys"]
    assert (new["key"], new["seals"], new["values"]) == (found.key, True, 7)
    assert old == {**before, "seals": False, "values": 0}
    assert opened(database, kept) == ALL
    assert (kept / "server.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("after", range(9))
def test_it_may_be_killed_at_any_write(database, kept, monkeypatch, after):
    rotation, left = KeyRotation(database, kept, {}), after
    write, put = SealingKey.write, sealed.put

    def or_die(act):
        def acts(*arguments):
            nonlocal left
            if not left:
                raise KilledError
            left -= 1
            return act(*arguments)

        return acts

    name = rotation.add()
    monkeypatch.setattr(SealingKey, "write", or_die(write))
    monkeypatch.setattr(sealed, "put", or_die(put))
    if after < 8:
        with pytest.raises(KilledError):
            rotation.rotate(name)
    else:
        rotation.rotate(name)
    monkeypatch.undo()
    assert opened(database, kept) == ALL
    rotation.rotate(name)
    assert [each["values"] for each in rotation.listed()["keys"]] == [7, 0]
    assert opened(database, kept) == ALL


def test_what_was_cut_short_goes_on_with_the_same_key(database, kept, monkeypatch):
    rotation = KeyRotation(database, kept, {})
    name = rotation.add()
    monkeypatch.setattr(sealed, "with_other_heads", lambda *_: iter(()))
    rotation.rotate(name)
    monkeypatch.undo()
    found = rotation.rotate()
    assert (found.key, found.is_new, found.values) == (name, False, 7)


def test_the_file_is_whole_whenever_it_is_looked_at(database, kept, monkeypatch):
    rotation, before = KeyRotation(database, kept, {}), (kept / "server.key").read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KilledError))
    with pytest.raises(KilledError):
        rotation.add()
    assert (kept / "server.key").read_bytes() == before


def test_what_somebody_writes_meanwhile_is_kept(database, kept, monkeypatch):
    """A value that was changed between look and write is the newer one."""
    rotation, put = KeyRotation(database, kept, {}), sealed.put

    def after_others(*arguments):
        monkeypatch.setattr(sealed, "put", put)
        TeamSecrets(database, kept, {}).put("red", "KEY_0", "newer", "bob")
        return put(*arguments)

    monkeypatch.setattr(sealed, "put", after_others)
    assert rotated(rotation).values == 6
    assert opened(database, kept) == {**ALL, "KEY_0": "newer"}


def test_a_key_goes_when_nothing_needs_it(database, kept):
    now = time.time()
    rotation = KeyRotation(database, kept, {}, clock=lambda: now)
    old = SealingKey.of(kept, {})
    with pytest.raises(UsageError, match="is the key that seals"):
        rotation.drop(old.name)
    name = rotation.add()
    TeamSecrets(database, kept, {}).put("red", "KEY_0", "key_0", "ann")
    with pytest.raises(NotFoundError, match="has no key 'other'") as caught:
        rotation.drop("other")
    assert caught.value.hint == f"It has {old.name}, {name}."
    rotation.rotate(name)
    with pytest.raises(UsageError, match="changed a moment ago"):
        rotation.drop(old.name)
    now += REST_S + 1
    late = old.seal(b"late", "secret/red/KEY_1")  # by who has read the file before
    TeamSecrets(database, kept, {}).put("red", "KEY_1", "x", "ann")
    database.write(
        lambda c, _: c.execute(
            t.team_secret.update().where(t.team_secret.c.name == "KEY_1").values(sealed=late)
        )
    )
    with pytest.raises(UsageError, match=f"1 values are sealed with {old.name}"):
        rotation.drop(old.name)
    assert rotation.rotate().values == 1
    now += REST_S + 1
    away = t.run.update().values(away="{}")
    database.write(lambda c, _: c.execute(away))
    with pytest.raises(UsageError, match="machines publish that drive r-1"):
        rotation.drop(old.name)
    database.write(lambda c, _: c.execute(away.values(away=None)))
    rotation.drop(old.name)
    assert SealingKey.of(kept, {}).all == (SealingKey.of(kept, {}).key,)
    assert opened(database, kept) == {**ALL, "KEY_1": "late"}


def test_what_no_key_opens_is_named_and_left(database, kept):
    rotation = KeyRotation(database, kept, {})
    alien = SealingKey(bytes(32), kept).seal(b"x", "secret/red/KEY_3")
    change = t.team_secret.update().where(t.team_secret.c.name == "KEY_3").values(sealed=alien)
    database.write(lambda connection, _: connection.execute(change))
    assert rotated(rotation).lost == ("secret/red/KEY_3",)
    last = rotation.listed()["keys"][-1]
    assert last == {"key": SealingKey(bytes(32), kept).name, "seals": False, "is_known": False, "values": 1}
    with pytest.raises(SealedError, match=re.escape(f"{kept}/server.key has ")):
        opened(database, kept)


def test_several_servers_know_a_key_before_it_seals(database, kept):
    rotation = KeyRotation(database, kept, {})
    if not database.is_shared:
        pytest.skip("one home has one file")
    with pytest.raises(UsageError, match="other servers of this database would not know") as caught:
        rotation.rotate()
    assert "key add" in caught.value.hint
    name = rotation.add()
    other = kept / "other"
    other.mkdir()
    (other / "server.key").write_bytes((kept / "server.key").read_bytes())  # `scp`
    (other / "server.key").chmod(0o600)
    rotation.rotate(name)
    assert opened(database, other) == ALL, "it has the new key, and seals with the one before"
    TeamSecrets(database, other, {}).put("red", "KEY_0", "theirs", "ann")
    assert opened(database, kept) == {**ALL, "KEY_0": "theirs"}


def test_what_a_machine_of_its_own_has_sealed_is_opened_after_a_rotation(database, kept):
    before = key_of(SealingKey.of(kept, {}), "r-1")
    published = before.seal(b"state", "run/r-1/x")
    rotated(KeyRotation(database, kept, {}))
    after = key_of(SealingKey.of(kept, {}), "r-1")
    assert (after.key != before.key, after.open(published, "run/r-1/x")) == (True, b"state")


def test_every_column_of_bytes_is_sealed_or_known_not_to_be():
    known = {f"{each.table.name}.{each.name}" for each in sealed.COLUMNS} | {"run_file.data"}
    columns = [each for table in t.metadata.sorted_tables for each in table.columns]
    assert {f"{c.table.name}.{c.name}" for c in columns if isinstance(c.type, sa.LargeBinary)} == known
    assert {each.table.name for each in sealed.COLUMNS} == set(KINDS)
