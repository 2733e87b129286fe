"""What a run says of its target: when, how surely, and that it is never by this curve."""

import pytest

from trainmaster.service.runs.targets import TargetForecast
from trainmaster.spec.until import Until


def told(p5=None, p50=None, p95=None, chance=0.5, left=None, most=600.0):
    steps = {"p5": p5, "p50": p50, "p95": p95}
    left_s = None if left is None else dict(zip(("p5", "p50", "p95"), left, strict=True))
    aim = Until("accuracy", ">=", 0.9)
    return TargetForecast("train", 0, aim, 100.0, 0.7, most, chance, steps, left_s).words


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (told(chance=0.01), "never by this curve within 600 steps"),
        (told(most=None, chance=0.0), "never by this curve"),
        (told(p5=300.0, chance=0.2), "never by this curve within 600 steps, the chance is 20 %"),
        (told(p5=300.0, p50=500.0, chance=0.7), "at step 500 (300 to never)"),
        (told(p5=1300.0, p50=1500.0, p95=2000.0), "at step 1,500 (1,300 to 2,000)"),
    ],
)
def test_it_is_one_line_and_never_is_an_answer(words, ends):
    assert words == f"train/0 to accuracy >= 0.9: {ends}"


def test_before_enough_was_reported_it_says_so():
    found = TargetForecast("train", 0, Until("accuracy", ">=", 0.9))
    assert found.words.endswith("too little was reported to say when")
