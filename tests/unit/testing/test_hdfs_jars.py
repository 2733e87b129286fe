"""The jars of an HDFS of tests, which several fetch at the same time."""

import io
import tarfile
from pathlib import Path

import pytest

from trainmaster.testing import private_hdfs
from trainmaster.testing.private_hdfs import NoHdfsError, fetched_jars


def test_jars_are_there_whole_whatever_others_do_meanwhile(tmp_path, monkeypatch):
    place = tmp_path / "cache" / "hdfs"
    is_fetched = False

    def called(command, scratch):
        nonlocal is_fetched
        if "download" in command and "apt-get" not in command:
            if is_fetched:
                raise NoHdfsError("the network is away for the other")
            is_fetched = True
            with tarfile.open(Path(scratch, "pyspark-2.4.8.tar.gz"), "w:gz") as archive:
                entry = tarfile.TarInfo("pyspark-2.4.8/deps/jars/hadoop-hdfs-2.7.3.jar")
                entry.size = 4
                archive.addfile(entry, io.BytesIO(b"jar!"))
        elif command[0] == "apt-get":
            Path(scratch, "libjersey1-core-java.deb").touch()
        else:
            with pytest.raises(NoHdfsError):
                fetched_jars(place)

    monkeypatch.setattr(private_hdfs, "_called", called)
    assert sorted(each.name for each in fetched_jars(place).iterdir()) == [
        "complete",
        "hadoop-hdfs-2.7.3.jar",
    ]
    assert [each.name for each in place.parent.iterdir()] == ["hdfs"]
