"""Which content a run's machines may start with, and how long an image that is made is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from trainmaster.cluster.baking import Baking, _made
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.providers.base import BakedImage
from trainmaster.spec.errors import ProviderError

PLAN = ClusterPlan("main", ("a", "b"), "lab", (RolePlan("worker", 1, (Rental("m4.large"),)),))
CONTENT = {"a": ("1", "2"), "b": ("2", "3"), "elsewhere": ("4",)}
BEGUN = BakedImage("ami-1", "r", "run", ("1",))


def test_machines_start_with_what_all_experiments_on_them_need() -> None:
    assert Baking(CONTENT).wanted(PLAN) == ("1", "2", "3")
    assert Baking(CONTENT).wanted(replace(PLAN, provider="hosts")) == ()
    assert Baking(CONTENT, makes=True).wanted(PLAN) == (), "a new image is not made of an old one"


class SlowBaker:
    """Has it ready at the third look, or ends with a problem."""

    def __init__(self, end: BakedImage) -> None:
        self.answers = [replace(BEGUN, id=""), BEGUN, end]
        self.slept: list[float] = []

    def bake(self, cluster: str, node: str, image: BakedImage) -> BakedImage:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def images(self) -> list[BakedImage]:
        return []

    def remove_image(self, image: str) -> bool:
        return False

    def made(self, hurried: Callable[[], bool] = lambda: False) -> BakedImage:
        return _made(self, "run.main", "i-1", BEGUN, hurried, self.slept.append)


def test_an_image_is_waited_for_until_it_is_ready_or_never_will_be() -> None:
    ready = replace(BEGUN, is_ready=True)
    assert SlowBaker(ready).made() == ready
    with pytest.raises(ProviderError, match="ami-1: AWS says that it is failed"):
        SlowBaker(replace(BEGUN, problem="AWS says that it is failed")).made()
    with pytest.raises(ProviderError, match="not ready yet"):
        SlowBaker(ready).made(lambda: True)
    never = SlowBaker(BEGUN)
    with pytest.raises(ProviderError, match="waited for no more"):
        never.made()
    assert sum(never.slept) == pytest.approx(3600, abs=20)
