"""CPU credits: what a burstable machine may use, by what it has used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.lab.credits import LAUNCH_S, CpuCredits
from trainmaster.lab.instance_types import TYPES
from trainmaster.providers import load_catalogue


def test_types_have_the_baselines_of_the_catalogue() -> None:
    known = {each.instance_type: each for each in load_catalogue() if each.provider == "aws"}
    for name, kind in TYPES.items():
        if name in known:
            is_slowed = known[name].cpu_credits == "standard"
            assert kind.cpu_baseline == (known[name].cpu_baseline_share if is_slowed else 1.0)
    assert (TYPES["t2.nano"].cpu_baseline, TYPES["t2.micro"].cpu_baseline) == (0.05, 0.1)


def test_a_busy_machine_is_fast_until_its_credits_are_used_up_and_then_has_what_it_earns() -> None:
    credits, used = CpuCredits(0.2, speed=60), []
    for _ in range(120):
        used.append(credits.share(1.0))
        credits.spend(used[-1], 1.0)
    assert used[:37] == [1.0] * 37  # 1800 s / 0.8 / 60 = 37.5 s
    assert 0.2 < used[37] < 1.0
    assert max(used[38:]) < 0.2 + 1e-9


def test_a_machine_that_rests_may_be_fast_again() -> None:
    credits = CpuCredits(0.2, speed=60, balance_s=0.0)
    credits.spend(0.0, 10.0)
    assert credits.balance_s == 120.0
    assert credits.share(1.0) == 1.0


@given(st.floats(0.01, 0.99), st.floats(0.1, 1000), st.lists(st.floats(0, 1), max_size=50))
def test_nobody_uses_more_than_was_there_and_earned(
    baseline: float, speed: float, wants: list[float]
) -> None:
    credits, total = CpuCredits(baseline, speed), 0.0
    for want in wants:
        used = min(want, credits.share(1.0))
        credits.spend(used, 1.0)
        total += used
        assert 0 <= credits.balance_s <= LAUNCH_S + baseline * 86_400
    assert total <= LAUNCH_S / speed + baseline * len(wants) + 1e-6
