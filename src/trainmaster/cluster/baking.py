"""`Baking`: what a run puts on its machines, and the images that are made of them for later runs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.environment_hashes import environment_hashes
from trainmaster.dataclass import dataclass, field
from trainmaster.providers.base import BakedImage, Baker, Provider
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import ProviderError, TrainmasterError, one_line
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_loop import ClusterLoop
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.cluster.node_provisioner import NodeProvisioner
    from trainmaster.cluster.renting.plan import ClusterPlan

_TIDY_TIMEOUT_S: Final = 300.0
#: A snapshot of a full disk takes some minutes.
_PATIENCE_S: Final = 3600.0
_MOST_PAUSE_S: Final = 10.0
#: The switch of this machine runs on; those that start from the image set their own. Some systems remove what
#: is older than a month from /var/tmp.
_TIDY: Final = """\
rm -rf -- {code}
sudo -n sh -s <<'END'
systemctl disable trainmaster-deadman.service 2> /dev/null
rm -f /etc/systemd/system/trainmaster-deadman.service /var/lib/cloud/scripts/per-boot/trainmaster-deadman
mkdir -p /etc/tmpfiles.d && echo 'x {root}' > /etc/tmpfiles.d/trainmaster.conf
END
sync
"""


@dataclass(frozen=True, slots=True)
class Baking:
    """Of one run.

    Attributes:
        content: what each experiment has on its nodes, by hash.
        saves_s: how long it took to put what experiments have there, as far as that was seen.
        makes: whether images are to be made of its machines.
        team: whose it is; empty without teams.
    """

    content: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    saves_s: Callable[[Sequence[str]], float] = lambda _: 0.0
    makes: bool = False
    team: str = ""

    @classmethod
    def of(cls, recipe: Recipe, code: Path, team: str, seconds: Callable[[Iterable[str]], float]) -> Baking:
        """That of a recipe, with the run's snapshot of its code."""
        every = recipe.experiments

        def saves_s(names: Sequence[str]) -> float:
            return seconds(environment_hashes((every[name] for name in names), code))

        content = {name: environment_hashes([each], code, team) for name, each in every.items()}
        return cls(content, saves_s, recipe.bake, team)

    def on(self, plan: ClusterPlan) -> tuple[str, ...]:
        """What its machines have when all of its experiments have been there."""
        return tuple(sorted({part for name in plan.experiments for part in self.content.get(name, ())}))

    def wanted(self, plan: ClusterPlan) -> tuple[str, ...]:
        """What its machines may start with. A new image is made again from the base."""
        return self.on(plan) if capabilities_of(plan.provider).bakes and not self.makes else ()

    def bake(
        self,
        loop: ClusterLoop,
        provider: Provider,
        provisioner: NodeProvisioner,
        tell: Callable[[str], None],
        hurried: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make an image of a cluster's first machine, whose work is over, and wait until it can be used.

        The cluster is of no use afterwards but to be given back. What goes wrong is told: the run is over.
        """
        record, formation = loop.record, loop.formation
        node = next((loop.accesses[m.id] for m in record.rented if m.id in loop.accesses), None)
        content = self.on(record.plan)
        if node is None or formation is None or not content or not isinstance(provider, Baker):
            tell(f"{record.id}: no image is made: there is nothing on its machines, or none of them is left")
            return
        try:
            provisioner.take_back(record, formation.cluster, list(loop.accesses.values()), {})
            _tidy(node)
            wanted = BakedImage(
                "",
                "",
                provisioner.run,
                content,
                saves_s=self.saves_s(record.plan.experiments),
                team=self.team,
            )
            tell(f"{record.id}: an image of {node.id} is made, which takes minutes in a cloud")
            image = _made(provider, record.id, node.id, wanted, hurried, sleep)
        except (TrainmasterError, OSError) as error:
            tell(f"warning: {record.id}: no image: {one_line(error)}")
            return
        saved = f": it saves {format_duration(image.saves_s)} on each machine" if image.saves_s else ""
        tell(f"image {image.id} in {image.region} is ready{saved}")


def _tidy(node: NodeAccess) -> None:
    """Leave nothing there of this run, nor what would act when another machine starts from it."""
    assert node.result.facts is not None
    code = shlex.quote(f"{node.result.facts.root}/code")
    with node.connect() as connection:
        script = _TIDY.format(code=code, root=node.root)
        connection.check("sh -s", data=script.encode(), timeout_s=_TIDY_TIMEOUT_S)


def _made(
    baker: Baker,
    cluster: str,
    node: str,
    image: BakedImage,
    hurried: Callable[[], bool],
    sleep: Callable[[float], None],
) -> BakedImage:
    pause_s, waited_s = 0.25, 0.0
    while not (found := baker.bake(cluster, node, image)).is_ready:
        if found.problem:
            raise ProviderError(f"{found.id}: {found.problem}", "Build it again.")
        if hurried() or waited_s > _PATIENCE_S:
            raise ProviderError(
                f"{found.id or 'it'} is not ready yet, and is waited for no more",
                "It may become ready all the same: `trainmaster image ls` shows it.",
            )
        sleep(pause_s)
        waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, _MOST_PAUSE_S)
        image = replace(image, region=found.region)
    return found
