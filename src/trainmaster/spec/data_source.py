"""Where a task's data come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

from trainmaster.spec.errors import UsageError
from trainmaster.spec.model_reference import REFERENCE, REFERENCE_RIGHT
from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, choice, pattern, size, text
from trainmaster.spec.redaction import has_secret

#: What experiments may be called: they become names of directories.
EXPERIMENT_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
EXPERIMENT_NAME_RIGHT: Final = (
    "write a name of letters, digits, '.', '_' and '-' that begins with a letter or digit"
)
_SHA256_RIGHT: Final = "write the 64 hexadecimal digits that `sha256sum FILE` prints, in quotes"
#: URLs that name one file; others name all objects below a prefix.
_FILES: Final = ("http", "https", "file")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: What Trainmaster itself has beside the working directory.
_OURS: Final = ("code", "inputs", "tasks")
_KINDS: Final = ("volume", "url", "dir", "from", "model")


class DataSource(Noun):
    """One entry of ``data``; exactly one of volume, url, directory, experiment and model is given.

    Attributes:
        volume: a volume's name or URL.
        url: a file, an archive or objects under a URL.
        sha256: of the file that ``url`` names, in hexadecimal digits.
        size_limit_bytes: most that ``url`` may bring, before and after it is unpacked.
        directory: a directory of the caller's machine (``dir`` in the recipe).
        experiment: the models of another experiment (``from`` in the recipe).
        best: only the model that is best by this metric.
        model: a registered model: ``digits@production``, ``digits@3``.
        model_uri: where that is published, once its version is fixed; no recipe says it.
        at: where members find it; None leaves the place to Trainmaster.
        stage: ``hdfs``: what is below ``url`` is copied into an HDFS on the nodes of the run.
        hadoop: a directory on each node with Hadoop, for that.
    """

    volume: Annotated[str | None, Key("volume", text("write a volume's name or URL"))] = None
    url: Annotated[str | None, Key("url", text("write a URL"))] = None
    sha256: Annotated[str | None, Key("sha256", pattern(r"[0-9A-Fa-f]{64}", _SHA256_RIGHT))] = None
    size_limit_bytes: Annotated[int | None, Key("size_limit", size)] = None
    directory: Annotated[str | None, Key("dir", text("write a directory"))] = None
    experiment: Annotated[str | None, Key("from", pattern(EXPERIMENT_NAME, "write an experiment's name"))] = (
        None
    )
    best: Annotated[str | None, Key("best", text("write a metric's name"))] = None
    model: Annotated[str | None, Key("model", pattern(REFERENCE, REFERENCE_RIGHT))] = None
    model_uri: str | None = None
    at: Annotated[str | None, Key("at", text("write a path"))] = None
    stage: Annotated[str | None, Key("stage", choice("hdfs"))] = None
    hadoop: Annotated[str | None, Key("hadoop", text("write a directory"))] = None
    one_of = _KINDS

    @property
    def identity(self) -> str:
        """What it is, whoever asks for it: by that it is known how long it took to bring it.

        >>> DataSource(volume="cifar-10").identity
        'volume cifar-10'
        """
        kinds = {"volume": self.volume, "url": self.url, "dir": self.directory, "from": self.experiment,
                 "model": self.model}  # fmt: skip
        kind, what = next((kind, what) for kind, what in kinds.items() if what is not None)
        return f"{kind} {what}{' in hdfs' * (self.stage is not None)}"

    def url_with(self, variables: Mapping[str, str]) -> str:
        """The URL with its ``${NAME}`` filled in, as URLs ask for.

        Raises:
            UsageError: there is no such variable.
        """
        missing = [name for name in self.url_variables if name not in variables]
        if missing:
            raise UsageError(
                f"${{{missing[0]}}} in a URL is no variable", f"Write {missing[0]} under `secrets` or `env`."
            )
        return _VARIABLE.sub(lambda found: quote(variables[found[1]], safe=""), self.url or "")

    @property
    def url_variables(self) -> list[str]:
        """Names of the variables that the URL is filled in with."""
        return _VARIABLE.findall(self.url or "")

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        given = [kind for kind in _KINDS if kind in node.entries]
        if len(given) != 1:
            found = f"{' and '.join(given)} together" if given else "no source"
            problems.add(node, path, f"{found}; give exactly one of {', '.join(_KINDS)}")
        if "best" in node.entries and "from" not in node.entries:
            problems.add(
                node.entries["best"], (*path, "best"), "`best` without `from`; only models have metrics"
            )
        for key in ("sha256", "size_limit"):
            if key in node.entries and "url" not in node.entries:
                message = f"`{key}` without `url`; it is for what a URL names"
                problems.add(node.entries[key], (*path, key), message)
        scheme = str(values.get("url", "")).partition("://")[0].lower()
        if "sha256" in node.entries and "url" in values and scheme not in _FILES:
            message = f"`sha256` of objects below {scheme}://; it is for one file ({', '.join(_FILES)})"
            problems.add(node.entries["sha256"], (*path, "sha256"), message)
        if "stage" in node.entries:
            _check_staged(node, path, problems, scheme)
        elif "hadoop" in node.entries:
            message = "`hadoop` without `stage: hdfs`"
            problems.add(node.entries["hadoop"], (*path, "hadoop"), message)
        for key in ("url", "volume"):
            user = str(values.get(key) or "").partition("://")[2].partition("/")[0].rpartition("@")[0]
            if user and "${" not in user and has_secret(values[key]):
                message = (
                    "a user or password in a URL, which would be written down with the run; write "
                    "https://${NAME}@HOST/..., and the name under `secrets`"
                )
                problems.add(node.entries[key], (*path, key), message)
        above, _, rest = str(values.get("at", "")).removeprefix("./").partition("/")
        if ".." in rest.split("/") or (above == ".." and rest.split("/")[0] in ("", ".", *_OURS)):
            message = "a path with '..'; write the place itself (`../NAME` is beside the working directory)"
            problems.add(node.entries["at"], (*path, "at"), message)


def _check_staged(node: YamlNode, path: Path, problems: Problems, scheme: str) -> None:
    message = ""
    if "url" not in node.entries:
        message = "`stage` without the `url` of an object store (s3://BUCKET/PREFIX); only that is staged"
    elif scheme in _FILES:
        message = f"`stage` with {scheme}://, which names one file; write s3://BUCKET/PREFIX"
        message += ", or without file:// a directory of this machine" * (scheme == "file")
    if message:
        problems.add(node.entries["stage"], (*path, "stage"), message)
    for key in ("at", "size_limit"):
        if key in node.entries:
            message = f"`{key}` with `stage: hdfs`; such data are no files of the node"
            problems.add(node.entries[key], (*path, key), message)
