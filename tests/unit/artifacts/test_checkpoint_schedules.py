"""Two drivers of one task, halted before any operation on the store, or killed: nothing good is lost."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster.artifacts import CheckpointSeries, checkpoints
from trainmaster.artifacts.owner import Owner
from trainmaster.spec.errors import PublishError
from trainmaster.testing.stepped_store import SteppedStore

pytestmark = pytest.mark.simulation

URI = "memory://b/checkpoints/digits-0123456789/train/0"
OURS = Owner("digits-0123456789", "a" * 32, 1.5)


def driver(directory, attempt: int, keep: int):
    """What CHECKPOINT and SAVE do, twice."""
    directory.mkdir(parents=True, exist_ok=True)

    def work() -> None:
        series = CheckpointSeries(URI, OURS)
        for step in range(2):
            (directory / "step").write_text(f"{attempt} {step}")
            try:
                if series.publish({"": directory}, attempt=attempt, require_stable=False) is not None:
                    series.prune(keep)
            except PublishError:  # a later attempt has published
                continue
        series.clear_unfinished()

    return work


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schedule=st.lists(st.integers(0, 2), max_size=120),
    killed=st.none() | st.tuples(st.integers(0, 2), st.integers(0, 60)),
    keep=st.integers(1, 2),
)
def test_there_is_always_something_to_restore(schedule, killed, keep, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, SteppedStore() as stage:
        patch.setattr(checkpoints, "_THREADS", 1)  # so that schedules repeat
        root = tmp_path_factory.mktemp("drivers")
        (root / "first").mkdir()
        (root / "first/step").write_text("0")
        series = CheckpointSeries(URI, OURS)
        assert series.publish({"": root / "first"}, attempt=1) == 1
        actors = [
            stage.start(f"attempt {attempt}", driver(root / f"{number}", attempt, keep))
            for number, attempt in enumerate((1, 2, 2))
        ]
        for turn, chosen in enumerate([*schedule, *(n % 3 for n in range(600))]):
            if killed is not None and turn == killed[1]:
                actors[killed[0]].kill()
            if actors[chosen].next is not None:
                stage.step(actors[chosen])
                assert series.complete(), f"nothing is left after {turn} steps"
        for actor in actors:
            stage.run(actor, lambda _: False)
            assert actor.is_over
        newest = series.newest()
        series.restore(newest, root / "back")


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_who_clears_up_and_sleeps_before_it_deletes_takes_nothing_that_was_published_meanwhile(
    steps, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "_THREADS", 1)
    with SteppedStore() as stage:
        series = CheckpointSeries(URI, OURS)
        (tmp_path / "step").write_text("1")
        series.publish({"": tmp_path}, attempt=1)
        (tmp_path / "step").write_text("2")

        def publish() -> None:
            mine = CheckpointSeries(URI, OURS)
            mine.publish({"": tmp_path}, attempt=1)
            mine.prune(1)

        publisher = stage.start("publisher", publish)
        assert stage.run(publisher, lambda op: op.name == "put_if_absent")
        clearer = stage.start("clearer", lambda: CheckpointSeries(URI, OURS).clear_unfinished())
        assert stage.run(clearer, lambda op: op.name in ("put_if_absent", "delete", "delete_all"))
        for _ in range(steps):
            stage.step(clearer)
        stage.finish(publisher)
        stage.finish(clearer)
        series.restore(series.complete()[-1], tmp_path / "back")
        assert (tmp_path / "back/step").read_text() == "2"
