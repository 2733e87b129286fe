"""What is pure of an HDFS on nodes: shares, configuration, restarts, what is found of Java and Hadoop."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.hdfs.configuration import DATANODE, Daemon, as_xml, copies_on
from trainmaster.hdfs.hadoop import find_hadoop, jars_of, opened
from trainmaster.hdfs.manifests import StoreObject, listed, shard
from trainmaster.hdfs.staging import block_bytes
from trainmaster.hdfs.watchdog import MOST_ENDS, WITHIN_S, pause_s
from trainmaster.spec.errors import UsageError

sizes = st.lists(st.integers(0, 1 << 40), max_size=60)
texts = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=30)


@given(sizes, st.integers(1, 7))
def test_every_object_has_one_node_and_no_node_much_more_than_another(sizes, count):
    listing = [StoreObject(f"k{number}", size, "") for number, size in enumerate(sizes)]
    shares = [list(shard(listing, index, count)) for index in range(count)]
    assert sorted(each for share in shares for each in share) == sorted(listing)
    loads = [sum(each.size_bytes + (1 << 20) for each in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0) + (1 << 20)


@given(texts, st.integers(0, 1 << 62), texts)
def test_a_listing_is_read_as_it_was_written(key, size, etag):
    each = StoreObject(key, size, etag)
    assert each.line().count(b"\n") == 1
    assert listed(each.line()) == each


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b'["a","b","c"]', b'["a",1,"c",4]', b"[" * 9999])
def test_what_is_no_line_of_a_listing_is_refused(line):
    with pytest.raises(ValueError):  # noqa: PT011 - several kinds
        listed(line)


@given(st.dictionaries(texts.filter(str.strip), texts, max_size=5))
def test_hadoop_reads_the_properties_that_were_meant(values):
    rows = ElementTree.fromstring(as_xml(values))
    assert {row[0].text or "": row[1].text or "" for row in rows} == values


def test_a_daemon_listens_at_its_node_only(tmp_path):
    daemon = Daemon(DATANODE, tmp_path, "10.0.0.2", "10.0.0.1", 9000, 9870, (1, 2, 3), copies_on(3), 7)
    rows = ElementTree.fromstring(daemon.files()["hdfs-site.xml"])
    found = {row[0].text: row[1].text for row in rows}
    assert found["dfs.datanode.address"] == "10.0.0.2:1"
    assert found["dfs.namenode.http-address"] == "10.0.0.1:9870"
    assert (found["dfs.replication"], found["dfs.datanode.du.reserved"]) == ("2", "7")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(sorted))
def test_what_ends_again_and_again_is_given_up_and_all_else_started(ended_at_s):
    lately = [each for each in ended_at_s if ended_at_s[-1] - each < WITHIN_S]
    pause = pause_s(ended_at_s)
    assert (pause is None) == (len(lately) >= MOST_ENDS)
    assert pause is None or 0 < pause < WITHIN_S / MOST_ENDS


@given(st.integers(0, 1 << 50))
def test_a_block_holds_a_small_file_and_is_one_that_hdfs_takes(size):
    block = block_bytes(size)
    assert block % (1 << 20) == 0
    assert 1 << 20 <= block <= 128 << 20
    assert size <= block or block == 128 << 20


def test_hadoop_is_found_where_it_is_named(tmp_path):
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_1\"' >&2\n")
    java.chmod(0o755)
    environment = {"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"}
    with pytest.raises(UsageError, match="has no hadoop-common") as error:
        find_hadoop(str(tmp_path), "", environment)
    assert "setup" in error.value.hint
    for name in ("hadoop-common-3.4.jar", "hadoop-hdfs-3.4.jar"):
        (tmp_path / name).touch()
    flat = find_hadoop(str(tmp_path), "", environment)
    assert (flat.java_version, flat.jars, flat.has_pages) == (8, (f"{tmp_path}/*",), False)
    assert opened(8) == []
    venv = tmp_path / "venv"
    for place, jar in (("common", "hadoop-common-3.4.jar"), ("hdfs", "hadoop-hdfs-3.4.jar")):
        folder = venv / "hadoop/share/hadoop" / place
        folder.mkdir(parents=True)
        (folder / jar).touch()
    (venv / "hadoop/share/hadoop/hdfs/webapps").mkdir()
    found = find_hadoop("", str(venv), environment)
    assert found.has_pages
    command = found.command("Main", ["conf"], 256, "-format")
    assert command[0] == str(java)
    assert command[-2:] == ["Main", "-format"]
    assert jars_of(tmp_path / "bin") is None


def test_hadoop_is_found_in_an_image(tmp_path):
    for name in ("bin/java", "hadoop/bin/hadoop"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
        (tmp_path / name).chmod(0o755)
    for name in ("common", "hdfs"):
        folder = tmp_path / "hadoop/share/hadoop" / name
        folder.mkdir(parents=True)
        (folder / f"hadoop-{name}-3.4.jar").touch()
    by_path = find_hadoop("", "", {"PATH": f"{tmp_path}/bin:{tmp_path}/hadoop/bin:/usr/bin:/bin"})
    by_home = find_hadoop(
        "", "", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HADOOP_HOME": f"{tmp_path}/hadoop"}
    )
    assert by_path == by_home
    assert by_path.java == f"{tmp_path}/bin/java"
    assert f"{tmp_path}/hadoop/share/hadoop/hdfs/*" in by_path.jars


def test_a_node_without_java_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr("trainmaster.hdfs.hadoop.shutil.which", lambda *_, **__: None)
    with pytest.raises(UsageError, match="no java") as error:
        find_hadoop("", "", {})
    assert "hadoop: DIR" in error.value.hint
