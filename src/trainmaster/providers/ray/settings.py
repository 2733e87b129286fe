"""`RaySettings`: where a Ray is that others run, and which of its machines may be asked for: ``ray.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

from trainmaster.providers.offer import Offer, site_offer
from trainmaster.providers.own_settings import SettingsKind, read_own_settings
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import Wording, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Problems,
    boolean,
    integer,
    mapping_of,
    noun,
    number,
    pattern,
    size,
    text,
)
from trainmaster.spec.reading import Path as KeyPath

KIND: Final = SettingsKind(
    "ray",
    "ray.yaml",
    "TRAINMASTER_RAY",
    Wording("settings of a Ray", "settings of a Ray", "a mapping with the keys address, machines"),
    "address: ray://ray.example.org:10001\nmachines:\n  gpu: {cpus: 8, memory: 32GB, gpus: 1, gpu: A100}",
)
_WORD: Final = r"[A-Za-z0-9][A-Za-z0-9_.:/-]*"


class RayMachine(Noun):
    """A bundle of a placement group: a node, or a part of one. Those of a cluster are on nodes of their own.

    Attributes:
        cpus, memory_bytes, gpus: that are asked for, by Ray's own account.
        gpu: model of the GPUs; where Ray knows it, it is asked for.
        resources: of the site's own, by name.
        labels: that its node must have.
        usd_per_hour: what an hour of it costs; 0 if nothing.
    """

    cpus: Annotated[int, Key("cpus", integer(1), required="write `cpus`: as Ray counts them")]
    memory_bytes: Annotated[int, Key("memory", size, required="write `memory`: such as 32GB")]
    gpus: Annotated[int, Key("gpus", integer(0))] = 0
    gpu: Annotated[str, Key("gpu", text("write a model such as A100"))] = ""
    resources: Annotated[
        dict[str, float],
        Key("resources", mapping_of(number(0.0001), "write a number by name", name=_WORD, what="one word")),
    ] = {}  # noqa: RUF012 - a noun's are never written to
    labels: Annotated[
        dict[str, str],
        Key("labels", mapping_of(text("write a text"), "write a text by name", name=_WORD, what="one word")),
    ] = {}  # noqa: RUF012 - a noun's are never written to
    usd_per_hour: Annotated[float, Key("usd_per_hour", number(0.0))] = 0.0

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse a model of no GPUs."""
        if values.get("gpu") and not values.get("gpus"):
            problems.add(node, path, "it has no gpus; write `gpus`: how many are asked for")

    @property
    def asked(self) -> dict[str, float]:
        """Of Ray, for one of them.

        >>> RayMachine(cpus=2, memory_bytes=10**9, gpus=1).asked
        {'CPU': 2.0, 'memory': 1000000000.0, 'GPU': 1.0}
        """
        own = {"CPU": float(self.cpus), "memory": float(self.memory_bytes)}
        return own | ({"GPU": float(self.gpus)} if self.gpus else {}) | dict(self.resources)


class RaySettings(Noun):
    """The whole file.

    Attributes:
        address: of it, as `ray.init` takes it.
        login: ``user@host:port`` from which it is reached; empty if it is from this machine.
        key: private key file for it; empty for the user's agent and usual keys.
        via: command that runs what follows it where the address can be reached, such as `kubectl exec`.
        python: has Ray in the version of the cluster, here or where ``login`` or ``via`` lead to.
        scratch: directory of each node for what is ours; removed at the end.
        grows: nodes come when they are asked for, so that what does not fit now is waited for.
        machines: that may be asked for, by names of one's own.
        file: where they are from.
    """

    address: Annotated[
        str,
        Key(
            "address",
            pattern(r"auto|(ray://)?[^\s/@]+:\d+", "write ray://host:10001, host:6379 or auto"),
            required="write `address`: such as ray://host:10001",
        ),
    ]
    login: Annotated[
        str, Key("login", pattern(r"([^\s@]+@)?[^\s@:]+(:\d+)?", "write user@host, or user@host:port"))
    ] = ""
    key: Annotated[str, Key("key", text("write the path of a private key"))] = ""
    via: Annotated[str, Key("via", text("write a command such as kubectl exec -i POD --"))] = ""
    python: Annotated[str, Key("python", text("write the path of a Python that has Ray"))] = ""
    scratch: Annotated[str, Key("scratch", pattern(r"/[^\s'\"$`\\]*", "write an absolute path"))] = "/tmp"  # noqa: S108 - with 0700
    grows: Annotated[bool, Key("grows", boolean)] = False
    machines: Annotated[
        dict[str, RayMachine],
        Key(
            "machines",
            mapping_of(
                noun(RayMachine),
                "write the machines by names of your own",
                name=r"[A-Za-z][A-Za-z0-9_.-]*",
                what="names of machines begin with a letter, then letters, digits, '.', '-' and '_'",
            ),
            required="write `machines`: what may be asked for",
        ),
    ]
    file: Path = Path(KIND.name)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse two ways at once."""
        if values.get("login") and values.get("via"):
            problems.add(node, path, "login and via are both a way there; write one of them")

    def machine(self, name: str) -> RayMachine:
        """The machine of a name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.machines:
            raise UsageError(
                f"{self.file} has no machine {name!r}",
                f"It has {', '.join(self.machines)}: add it, or name another.",
            )
        return self.machines[name]

    @property
    def key_file(self) -> Path | None:
        """The private key for the login."""
        return self.file.parent / Path(self.key).expanduser() if self.key else None


def read_settings(root: Path, environ: Mapping[str, str]) -> RaySettings:
    """The settings of a home.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: there are none, or no machines.
    """
    file = KIND.file(root, environ)
    found = read_own_settings(RaySettings, KIND, file)
    if not found.machines:
        raise UsageError(f"{file} names no machines", f"Such as:\n{KIND.example}")
    return found.model_copy(update={"file": file.absolute()})


def ray_offers(settings: RaySettings, today: date) -> list[Offer]:
    """What may be asked for, at the site's own price, or for nothing."""
    source = str(settings.file)
    return [
        site_offer(
            KIND.provider, name, each.cpus, each.memory_bytes, today, source,
            gpu=each.gpu if each.gpus else "", gpus=each.gpus,
            usd_per_hour=each.usd_per_hour,
        )
        for name, each in settings.machines.items()
    ]  # fmt: skip
