"""Health checks of replicas, whatever becomes of one of them."""

from __future__ import annotations

from trainmaster.control.health import HealthChecks, Heard


def test_a_check_that_breaks_is_not_the_last_one():
    def reach():
        raise RuntimeError("can't start new thread")

    heard = Heard(0.0, is_asking=True)
    HealthChecks(lambda: 1.0)._check(heard, reach, "/ready")
    assert (heard.is_asking, heard.is_healthy) == (False, False)
    assert heard.said == "GET /ready: internal error: can't start new thread"
