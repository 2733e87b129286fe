"""`RaySettings`: where a Ray is that others run, and which of its machines may be asked for: ``ray.yaml``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from trainmaster.providers.site_settings import LoginSettings, SiteKind, SiteMachine, machines_key
from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import (
    Key,
    Problems,
    boolean,
    integer,
    mapping_of,
    number,
    pattern,
    text,
)
from trainmaster.spec.reading import Path as KeyPath

_EXAMPLE: Final = (
    "address: ray://ray.example.org:10001\nmachines:\n  gpu: {cpus: 8, memory: 32GB, gpus: 1, gpu: A100}"
)
_WORD: Final = r"[A-Za-z0-9][A-Za-z0-9_.:/-]*"


class RayMachine(SiteMachine):
    """See `SiteMachine`: a bundle of a placement group: a node, or a part of one.

    Those of a cluster are on nodes of their own.

    Attributes:
        gpu: where Ray knows it, it is asked for.
        resources: of the site's own, by name.
        labels: that its node must have.
    """

    cpus: Annotated[int, Key("cpus", integer(1), required="write `cpus`: as Ray counts them")]
    resources: Annotated[
        dict[str, float],
        Key("resources", mapping_of(number(0.0001), "write a number by name", name=_WORD, what="one word")),
    ] = {}  # noqa: RUF012 - a noun's are never written to
    labels: Annotated[
        dict[str, str],
        Key("labels", mapping_of(text("write a text"), "write a text by name", name=_WORD, what="one word")),
    ] = {}  # noqa: RUF012 - a noun's are never written to

    @property
    def asked(self) -> dict[str, float]:
        """Of Ray, for one of them.

        >>> RayMachine(cpus=2, memory_bytes=10**9, gpus=1).asked
        {'CPU': 2.0, 'memory': 1000000000.0, 'GPU': 1.0}
        """
        own = {"CPU": float(self.cpus), "memory": float(self.memory_bytes)}
        return own | ({"GPU": float(self.gpus)} if self.gpus else {}) | dict(self.resources)


class RaySettings(LoginSettings[RayMachine]):
    """See `LoginSettings`.

    Attributes:
        address: of it, as `ray.init` takes it.
        via: command that runs what follows it where the address can be reached, such as `kubectl exec`.
        python: has Ray in the version of the cluster, here or where ``login`` or ``via`` lead to.
        variables: of Ray's own, that it is to find in its environment: of tokens, and of TLS.
        grows: nodes come when they are asked for, so that what does not fit now is waited for.
    """

    address: Annotated[
        str,
        Key(
            "address",
            pattern(r"auto|(ray://)?[^\s/@]+:\d+", "write ray://host:10001, host:6379 or auto"),
            required="write `address`: such as ray://host:10001",
        ),
    ]
    via: Annotated[str, Key("via", text("write a command such as kubectl exec -i POD --"))] = ""
    variables: Annotated[
        dict[str, str],
        Key(
            "variables",
            mapping_of(text("write a text"), "write a text by name", name=r"RAY_[A-Z_]+", what="RAY_..."),
        ),
    ] = {}  # noqa: RUF012 - a noun's are never written to
    grows: Annotated[bool, Key("grows", boolean)] = False
    machines: Annotated[dict[str, RayMachine], machines_key(RayMachine)]

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse two ways at once."""
        super().check(values, node, path, problems)
        if values.get("login") and values.get("via"):
            problems.add(node, path, "login and via are both a way there; write one of them")


RAY: Final = SiteKind("ray", "a Ray", "address, machines", _EXAMPLE, RaySettings)
