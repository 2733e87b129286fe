"""Background work of a control loop."""

from __future__ import annotations

import threading

from trainmaster.control.decide.task import EffectKind, Job
from trainmaster.control.loop.jobs import THREADS, Jobs
from trainmaster.testing.waits import until

KEY = ("train", 0, 1, EffectKind.STAGE)


def until_collected(jobs: Jobs, but: int = 0) -> None:
    def is_so() -> bool:
        jobs.collect()
        return jobs.pending <= but

    until(is_so, f"all jobs but {but} are done")


def collected(jobs: Jobs) -> Job:
    until_collected(jobs)
    return jobs.of("train", 0, 1)[EffectKind.STAGE]


def test_a_job_that_was_dropped_and_begun_anew_is_not_done_when_the_first_one_is() -> None:
    jobs, first, second = Jobs(), threading.Event(), threading.Event()

    def work(event: threading.Event, name: str) -> Job:
        event.wait(10)
        return Job(done=True, fields={"on": name})

    jobs.begin(KEY, lambda: work(first, "a node that is lost"))
    jobs.drop("train", 0, 1)
    jobs.begin(KEY, lambda: work(second, "the next one"))
    first.set()
    until_collected(jobs, but=1)
    assert not jobs.of("train", 0, 1)[EffectKind.STAGE].done
    second.set()
    assert collected(jobs).fields == {"on": "the next one"}


def test_nodes_that_fetch_for_long_do_not_hold_up_each_other() -> None:
    """More attempts are staged at the same time than a machine of its own could stage."""
    jobs, ends = Jobs(most_staged=THREADS + 2), threading.Event()
    begun = threading.Barrier(THREADS + 3)

    def work() -> Job:
        begun.wait(5)
        ends.wait(5)
        return Job(done=True)

    for task in range(THREADS + 2):
        jobs.begin(("train", task, 1, EffectKind.STAGE), work)
    begun.wait(5)
    ends.set()
    assert collected(jobs).done


def test_how_long_publishing_took_is_told() -> None:
    now = [100.0]
    jobs, told = Jobs(clock=lambda: now[0]), []
    jobs.published = told.append
    release = threading.Event()

    def work(job: Job) -> Job:
        release.wait(10)
        return job

    published = Job(done=True, progressed=True)
    saved = Job(done=True, fields={"model_uri": "file:///m"})
    for number, job in enumerate(
        (published, saved, Job(done=True), Job(done=True, error="away", progressed=True))
    ):
        jobs.begin(("train", number, 1, EffectKind.CHECKPOINT), lambda job=job: work(job))
    now[0] = 107.0
    release.set()
    until_collected(jobs)
    assert told == [7.0, 7.0], "nothing new, and what failed, tell nothing"
