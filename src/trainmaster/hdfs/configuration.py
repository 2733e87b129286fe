"""Files of configuration that the daemons of an HDFS are started with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from trainmaster.dataclass import dataclass

NAMENODE: Final = "namenode"
DATANODE: Final = "datanode"
#: Main classes of the daemons.
CLASSES: Final = {
    NAMENODE: "org.apache.hadoop.hdfs.server.namenode.NameNode",
    DATANODE: "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
_MOST_COPIES: Final = 2
#: A DataNode that says nothing for so long is avoided, and one that does so for a minute is given up:
#: twice the second time and ten heartbeats.
_STALE_MS: Final = 10_000
_HEARTBEAT_S: Final = 3
_RECHECK_MS: Final = 15_000
_NAMENODE_RESERVED_BYTES: Final = 100 << 20
#: Of log4j: what is warned of goes to standard error.
LOGGING: Final = """log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon as it is configured.

    Attributes:
        kind: `NAMENODE` or `DATANODE`.
        directory: its own, on the node.
        address: of its node, where the others reach it.
        namenode: address of the NameNode's.
        rpc_port: of the NameNode, for ``hdfs://``.
        http_port: of the NameNode, for WebHDFS.
        ports: of a DataNode: for data, for other daemons, for WebHDFS.
        copies: of each block.
        reserved_bytes: what a DataNode leaves free on its disk for others.
    """

    kind: str
    directory: Path
    address: str
    namenode: str
    rpc_port: int
    http_port: int
    ports: tuple[int, int, int] = (0, 0, 0)
    copies: int = 1
    reserved_bytes: int = 0

    def files(self) -> dict[str, str]:
        """What its directory of configuration holds, by name."""
        core = {
            "fs.defaultFS": f"hdfs://{self.namenode}:{self.rpc_port}",
            "hadoop.tmp.dir": f"{self.directory}/scratch",
        }
        data, ipc, http = (f"{self.address}:{port}" for port in self.ports)
        hdfs = {
            "dfs.replication": self.copies,
            "dfs.permissions.enabled": "false",
            "dfs.webhdfs.enabled": "true",
            "dfs.namenode.http-address": f"{self.namenode}:{self.http_port}",
            "dfs.namenode.name.dir": f"file://{self.directory}/name",
            "dfs.datanode.data.dir": f"file://{self.directory}/data",
            # Addresses have no names everywhere.
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.client.use.datanode.hostname": "false",
            "dfs.datanode.hostname": self.address,
            "dfs.datanode.address": data,
            "dfs.datanode.ipc.address": ipc,
            "dfs.datanode.http.address": http,
            "dfs.datanode.du.reserved": self.reserved_bytes,
            # With less it refuses all writes; a DataNode's blocks must not bring it there.
            "dfs.namenode.resource.du.reserved": min(self.reserved_bytes // 2, _NAMENODE_RESERVED_BYTES),
            "dfs.heartbeat.interval": _HEARTBEAT_S,
            "dfs.namenode.heartbeat.recheck-interval": _RECHECK_MS,
            "dfs.namenode.stale.datanode.interval": _STALE_MS,
            "dfs.namenode.avoid.read.stale.datanode": "true",
            "dfs.namenode.avoid.write.stale.datanode": "true",
            # With two nodes there is no third to take the place of a copy that is lost while it is written.
            "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
        }
        return {"core-site.xml": as_xml(core), "hdfs-site.xml": as_xml(hdfs), "log4j.properties": LOGGING}


def data_directory(place: Path) -> Path:
    """Where the DataNode of a place keeps its blocks."""
    return place / DATANODE / "data"


def as_xml(values: Mapping[str, object]) -> str:
    """Properties as Hadoop reads them.

    >>> as_xml({"a": "<&>"})
    '<configuration><property><name>a</name><value>&lt;&amp;&gt;</value></property></configuration>'
    """
    rows = (
        f"<property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>"
        for name, value in values.items()
    )
    return f"<configuration>{''.join(rows)}</configuration>"


def copies_on(nodes: int) -> int:
    """How many copies of each block there are on so many nodes.

    >>> [copies_on(nodes) for nodes in (1, 2, 5)]
    [1, 2, 2]
    """
    return max(1, min(_MOST_COPIES, nodes))
