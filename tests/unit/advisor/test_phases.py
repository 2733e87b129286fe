"""What a phase that is no training takes, by what was seen of it and of others of its kind."""

import pytest

from trainmaster.advisor.market.phases import PhaseHistory, PhaseSample


def new_setup(*seconds):
    """Of a setup that was never seen, where others took so long."""
    seen = tuple(PhaseSample(each, "local", f"{n}") for n, each in enumerate(seconds))
    return PhaseHistory("setup", "new", seen).belief("local", stays=True)


def test_contents_that_were_alike_tell_a_new_one_ever_more_closely():
    spreads = [new_setup(*[15.0] * n).spread for n in (1, 3, 9, 27)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] > 0.7
    assert spreads[-1] < 0.35


def test_contents_that_differ_leave_as_much_doubt_as_they_showed():
    assert new_setup(*[2.0, 200.0] * 8).spread > 2.0
    assert new_setup(*[12.0, 20.0] * 8).spread == pytest.approx(0.45, abs=0.1)


def test_a_first_content_far_from_the_belief_widens_it():
    assert new_setup(0.5).spread > new_setup(20.0).spread


def test_what_was_seen_itself_is_no_guess_from_others():
    others = [PhaseSample(300.0, "lab:small", f"{n}") for n in range(9)]
    own = [PhaseSample(30.0, "lab:small", "new")] * 9
    found = PhaseHistory("setup", "new", (*own, *others)).belief("lab:small", stays=False)
    assert found.median == pytest.approx(30.0, rel=0.1)
    assert found.spread < 0.5


def test_what_other_contents_took_counts_from_the_same_kind_of_machine():
    here = tuple(PhaseSample(10.0, "local", f"{n}") for n in range(12))
    slow = tuple(PhaseSample(90.0, "lab:small", f"slow {n}") for n in range(12))
    both = PhaseHistory("setup", "new", here + slow)
    assert 9 < both.belief("local", stays=True).median < 13
    assert both.belief("lab:small", stays=False).median > 60
    assert 20 < both.belief("lab:large", stays=False).median < 45
