"""`PrivateHdfs`: a namenode and datanodes of one's own, for tests of ``hdfs://``.

Hadoop 2.7.3 as PySpark 2.4.8 brings it, with what Debian has of Jersey 1: 220 MB, fetched once.
It is old and has known faults: on the loopback only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from trainmaster.hdfs.configuration import CLASSES, DATANODE, LOGGING, NAMENODE, as_xml
from trainmaster.testing.private_server import PrivateServer, free_ports, spawn, wait_until

#: Of several Javas on a machine that others use, too.
_START_TIMEOUT_S = 300.0
_PYSPARK = "pyspark==2.4.8"
_DEBIAN = (
    "libjersey1-core-java",
    "libjersey1-server-java",
    "libjersey1-servlet-java",
    "libjersey1-json-java",
    "libjsr311-api-java",
    "libcommons-daemon-java",
)
_WANTED = (
    "hadoop-hdfs",
    "hadoop-common",
    "hadoop-auth",
    "hadoop-annotations",
    "jetty",
    "netty",
    "protobuf-java",
    "guava",
    "log4j-1",
    "commons-",
    "htrace",
    "httpclient",
    "httpcore",
    "leveldbjni",
    "xmlenc",
    "jackson-core-asl",
    "jackson-mapper-asl",
    "jackson-jaxrs-1",
    "jackson-xc",
    "jaxb-api",
    "jsp-api",
    "javax.servlet-api",
    "zookeeper",
    "xbean",
    "slf4j",
)
_JVM = (
    "-Xmx256m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:TieredStopAtLevel=1",  # half of their processor time is the second compiler's
    "-Djava.net.preferIPv4Stack=true",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
_OPENED = ("java.lang", "java.nio", "sun.nio.ch", "java.net")


class NoHdfsError(Exception):
    """There is no HDFS that could be started here."""


def fetched_jars(directory: Path) -> Path:
    """Gives a directory with the jars of HDFS; fetches them from PyPI and Debian if it is not there yet.

    Raises:
        NoHdfsError: they cannot be had.
    """
    if (directory / "complete").is_file():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".hdfs-", dir=directory.parent) as scratch:
        draft = Path(scratch, "jars")  # other processes may fetch them, too
        draft.mkdir()
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
        _called([*pip, "--no-binary", ":all:", _PYSPARK], scratch)
        _called(["apt-get", "download", *_DEBIAN], scratch)
        with tarfile.open(next(Path(scratch).glob("pyspark-*.tar.gz"))) as archive:
            for member in archive:
                name = Path(member.name).name
                source = archive.extractfile(member) if member.isfile() and name.endswith(".jar") else None
                if source is not None and "/jars/" in member.name and name.startswith(_WANTED):
                    (draft / name).write_bytes(source.read())
        for package in Path(scratch).glob("*.deb"):
            _called(["dpkg", "-x", str(package), "unpacked"], scratch)
        for jar in Path(scratch, "unpacked").rglob("*.jar"):
            if not jar.is_symlink():
                shutil.copy(jar, draft / jar.name)
        (draft / "complete").touch()
        try:
            draft.rename(directory)
        except OSError:  # another process was quicker, and has all of them
            if not (directory / "complete").is_file():  # or an earlier version was ended meanwhile
                shutil.rmtree(directory)
                draft.rename(directory)
    return directory


class PrivateHdfs(PrivateServer):
    """An HDFS on the loopback, each datanode at an address of its own; it ends with its context.

    Args:
        jars: as :func:`fetched_jars` gives them.
        datanodes: how many; each block is kept by up to two.

    Attributes:
        url: ``hdfs://`` with the port of WebHDFS.
        jars: as they were given.

    Raises:
        NoHdfsError: Java is missing, or it does not start.
    """

    def __init__(self, jars: Path, datanodes: int = 2) -> None:
        if shutil.which("java") is None:
            raise NoHdfsError("no java on PATH")
        self.jars = jars
        self._count = datanodes
        self._directory = Path(tempfile.mkdtemp(prefix="tm-hdfs-"))
        self._rpc_port, self._http_port = free_ports(2)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"hdfs://127.0.0.1:{self._http_port}"

    def prepare(self) -> None:
        """Formats the file system."""
        web = self._directory / "web"
        for name in ("hdfs", "datanode", "static", "secondary"):
            (web / "webapps" / name / "WEB-INF").mkdir(parents=True)
            (web / "webapps" / name / "WEB-INF/web.xml").write_text("<web-app/>")
        self._start("namenode", "127.0.0.1", CLASSES[NAMENODE], "-format", "-force", "-nonInteractive")
        if self._processes.pop("namenode").wait(_START_TIMEOUT_S) != 0:
            raise NoHdfsError(self._log("namenode"))

    def start(self) -> None:
        """Starts the namenode and every datanode, and waits until they know each other.

        Raises:
            NoHdfsError: they do not.
        """
        self._start("namenode", "127.0.0.1", CLASSES[NAMENODE])
        for number in range(self._count):
            self.start_datanode(number)
        self._wait()

    def start_datanode(self, number: int) -> None:
        """Starts a datanode."""
        self._start(f"datanode{number}", f"127.0.0.{2 + number}", CLASSES[DATANODE])

    def kill_datanode(self, number: int) -> None:
        """``kill -9``: the namenode goes on sending clients to it for a while."""
        process = self._processes.pop(f"datanode{number}")
        process.kill()
        process.wait()

    def close(self) -> None:
        """Ends everything and removes it."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
        self._processes.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, name: str, address: str, main: str, *arguments: str) -> None:
        place = self._directory / name
        for folder in ("conf", "scratch"):
            (place / folder).mkdir(parents=True, exist_ok=True)
        self._configure(place, address)
        classes = ":".join([str(place / "conf"), str(self._directory / "web"), f"{self.jars}/*"])
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        words = ["java", *_JVM, f"-Djava.io.tmpdir={place}/scratch", *opened, "-cp", classes]
        words += [main, *arguments]
        environ = {**os.environ, "HADOOP_USER_NAME": "tester"}
        self._processes[name] = spawn(words, place / "log", environ, place)

    def _configure(self, place: Path, address: str) -> None:
        data_port, ipc_port = free_ports(2)
        core = {"fs.defaultFS": f"hdfs://127.0.0.1:{self._rpc_port}", "hadoop.tmp.dir": place / "tmp"}
        hdfs = {
            "dfs.replication": min(2, self._count),
            "dfs.permissions.enabled": "false",
            "dfs.webhdfs.enabled": "true",
            "dfs.namenode.http-address": f"127.0.0.1:{self._http_port}",
            "dfs.namenode.name.dir": place / "name",
            "dfs.datanode.data.dir": place / "data",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.fs-limits.min-block-size": 65536,
            "dfs.datanode.hostname": address,
            # The namenode tells them apart by port, as all call from one address.
            "dfs.datanode.address": f"127.0.0.1:{data_port}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ipc_port}",
            "dfs.datanode.http.address": f"{address}:50075",
            "dfs.heartbeat.interval": 1,
            "dfs.namenode.heartbeat.recheck-interval": 5000,
        }
        (place / "conf/core-site.xml").write_text(as_xml(core))
        (place / "conf/hdfs-site.xml").write_text(as_xml(hdfs))
        (place / "conf/log4j.properties").write_text(LOGGING)

    def _wait(self) -> None:
        """Until every datanode is known: a file can be written and read."""

        def failed() -> NoHdfsError:
            return NoHdfsError("\n".join(self._log(name) for name in ("namenode", "datanode0")))

        started = self._processes.values()
        wait_until(lambda: self._live() >= self._count, started, failed, _START_TIMEOUT_S)

    def _live(self) -> int:
        import json

        bean = "Hadoop:service=NameNode,name=FSNamesystemState"
        url = f"http://127.0.0.1:{self._http_port}/jmx?qry={bean}"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return int(json.load(response)["beans"][0]["NumLiveDataNodes"])
        except (OSError, urllib.error.URLError, ValueError, KeyError, IndexError):
            return 0

    def _log(self, name: str) -> str:
        path = self._directory / name / "log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""


def _called(command: list[str], place: str) -> None:
    result = subprocess.run(command, cwd=place, capture_output=True, check=False, text=True)
    if result.returncode != 0:
        raise NoHdfsError(f"{command[0]}: {result.stderr[-500:]}")
