"""`find_hadoop`: Java and the jars of Hadoop on a node; they come from the user, we bring none."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError, fails_as

_HINT: Final = (
    "Java and Hadoop come with the machine's image, with `setup` (VIRTUAL_ENV/bin/java, VIRTUAL_ENV/hadoop), "
    "or from a directory on each node that `hadoop: DIR` beside `stage: hdfs` names."
)
#: Where jars are in a distribution of Hadoop; a directory may also have all of them flat.
_PLACES: Final = (
    "share/hadoop/common",
    "share/hadoop/common/lib",
    "share/hadoop/hdfs",
    "share/hadoop/hdfs/lib",
)
_NEEDED: Final = ("hadoop-common-", "hadoop-hdfs-")
_USUAL: Final = ("/opt/hadoop", "/usr/local/hadoop", "/usr/lib/hadoop")
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_MODULES: Final = 9
_ASK_TIMEOUT_S: Final = 60.0
#: Else each process has a file in /tmp, in a directory that stays.
_NO_FILES: Final = "-XX:-UsePerfData"
_OPENED: Final = ("java.lang", "java.nio", "sun.nio.ch", "java.net")


@dataclass(frozen=True, slots=True)
class Hadoop:
    """What daemons are started with.

    Attributes:
        java: the program.
        java_version: 8, 11, 17 and so on.
        jars: entries of the class path.
        has_pages: whether it brings the web pages without which no daemon starts.
    """

    java: str
    java_version: int
    jars: tuple[str, ...]
    has_pages: bool

    def command(
        self, main: str, classes: Sequence[str], heap_mib: int, *arguments: str, scratch: str = ""
    ) -> list[str]:
        """Start a class of Hadoop's.

        Args:
            main: the class.
            classes: what goes before the jars on the class path.
            heap_mib: most memory for its objects.
            arguments: of the class.
            scratch: a directory that is there, for what would else stay in ``/tmp``, such as web pages.
        """
        return [
            self.java,
            f"-Xmx{heap_mib}m",
            "-XX:+UseSerialGC",
            "-Djava.net.preferIPv4Stack=true",
            _NO_FILES,
            *([f"-Djava.io.tmpdir={scratch}"] if scratch else []),
            *opened(self.java_version),
            "-cp",
            ":".join([*classes, *self.jars]),
            main,
            *arguments,
        ]


def opened(java_version: int) -> list[str]:
    """What Hadoop has to be let into of a Java with modules.

    >>> opened(8)
    []
    """
    if java_version < _MODULES:
        return []
    found = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    return [*found, "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED"]


def version_of(said: str) -> int | None:
    r"""Reads what ``java -version`` says.

    >>> version_of('openjdk version "17.0.15" 2025-04-15'), version_of('java version "1.8.0_402"\n')
    (17, 8)
    """
    found = _VERSION.search(said)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def heap_mib(memory_bytes: int) -> int:
    """Memory for the objects of a NameNode: it keeps the names of all files.

    >>> [heap_mib(gib << 30) for gib in (1, 16, 256)]
    [256, 2048, 4096]
    """
    return min(max(memory_bytes >> 23, 256), 4096)


def find_hadoop(directory: str, venv: str, environment: Mapping[str, str]) -> Hadoop:
    """Look for Java and Hadoop on this machine.

    Args:
        directory: as the recipe names it; empty if it does not.
        venv: what the recipe's ``setup`` has made; empty without.
        environment: variables.

    Raises:
        UsageError: there is no Java, or no Hadoop.
    """
    own = f"{venv}/bin" if venv else ""
    path = ":".join(part for part in (own, environment.get("PATH", ""), "/usr/bin:/usr/local/bin") if part)
    java = _java(directory, path, environment)
    for place in _candidates(directory, venv, path, environment):
        jars = jars_of(place)
        if jars is not None:
            pages = (place / "share/hadoop/hdfs/webapps").is_dir()
            return Hadoop(
                java, _asked_version(java), (*([str(place / _PLACES[2])] if pages else []), *jars), pages
            )
    if directory:
        raise UsageError(f"hadoop: {directory} has no {_NEEDED[0]}*.jar and {_NEEDED[1]}*.jar", _HINT)
    raise UsageError("there is no Hadoop for `stage: hdfs`", _HINT)


def jars_of(place: Path) -> tuple[str, ...] | None:
    """Entries of a class path with the jars of a Hadoop; None if there is none at this place."""
    for folders in ([place], [place / each for each in _PLACES]):
        names = [each.name for folder in folders if folder.is_dir() for each in folder.glob("hadoop-*.jar")]
        if all(any(name.startswith(needed) for name in names) for needed in _NEEDED):
            return tuple(f"{folder}/*" for folder in folders)
    return None


def _candidates(directory: str, venv: str, path: str, environment: Mapping[str, str]) -> list[Path]:
    if directory:
        return [Path(directory).expanduser()]
    found = [environment[name] for name in ("HADOOP_HOME", "HADOOP_HDFS_HOME") if environment.get(name)]
    found += [f"{venv}/hadoop"] if venv else []
    if program := shutil.which("hadoop", path=path) or shutil.which("hdfs", path=path):
        found.append(str(Path(program).resolve().parent.parent))
    return [Path(each) for each in (*found, *_USUAL)]


def _java(directory: str, path: str, environment: Mapping[str, str]) -> str:
    homes = [f"{directory}/jre", f"{directory}/jdk"] if directory else []
    homes += [environment["JAVA_HOME"]] if environment.get("JAVA_HOME") else []
    for home in homes:
        if program := shutil.which("java", path=f"{Path(home).expanduser()}/bin"):
            return program
    if program := shutil.which("java", path=path):
        return program
    raise UsageError("there is no java for `stage: hdfs`", _HINT)


def _asked_version(java: str) -> int:
    with fails_as(f"{java} does not start", _HINT, on=(OSError, subprocess.SubprocessError)):
        said = subprocess.run(
            [java, _NO_FILES, "-version"],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    version = version_of(said.stderr + said.stdout)
    if said.returncode != 0 or version is None:
        raise UsageError(f"{java} -version says {(said.stderr or said.stdout).strip()[:200]!r}", _HINT)
    return version
