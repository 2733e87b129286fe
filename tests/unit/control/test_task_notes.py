"""What is said of attempts that show no sign of work."""

from pathlib import Path
from types import SimpleNamespace

from trainmaster.control.decide.effects import EffectKind, Policy
from trainmaster.control.notes.task_notes import TOLD_AFTER_S, JobNotes, SilenceNotes
from trainmaster.control.task.layout import attempt_id
from trainmaster.spec.states import State


def test_a_silence_is_told_once_and_the_next_one_again():
    notes = SilenceNotes({"main": Policy(), "guarded": Policy(silence_s=60.0)})
    of = {(name, 0): SimpleNamespace(silent_s=0.0, directory=Path(name)) for name in ("main", "guarded")}

    def told(silent_s):
        for each in of.values():
            each.silent_s = silent_s
        return [(note.experiment, note.message) for note in notes.look(of)]

    assert told(TOLD_AFTER_S - 1) == []
    ((name, words),) = told(TOLD_AFTER_S)
    assert (name, "10 min" in words, "`silence: 10m`" in words) == ("main", True, True)
    assert told(TOLD_AFTER_S + 5) == []
    assert told(0.0) == []
    assert len(told(TOLD_AFTER_S)) == 1


def test_saving_that_takes_long_is_told_once():
    notes = JobNotes(SimpleNamespace())
    task = SimpleNamespace(
        experiment="main", number=0, attempt=1, key=("main", 0), state=State.SAVING, try_at=None
    )
    run_state, jobs = SimpleNamespace(run="r", live_tasks=lambda: [task]), SimpleNamespace()
    told = {at: [n.message for n in notes.look(run_state, jobs, [], at)] for at in (10.0, 20.0, 26.0, 99.0)}
    assert [at for at, words in told.items() if words] == [26.0]
    assert told[26.0][0].startswith("it has ended; what it left is still being saved")


def test_saving_that_has_failed_for_a_reason_is_not_said_to_be_of_many_files():
    notes = JobNotes(SimpleNamespace(left_s=lambda: None))
    task = SimpleNamespace(
        experiment="main", number=0, attempt=1, key=("main", 0), state=State.SAVING, try_at=5.0
    )
    failed = SimpleNamespace(done=True, error="the store does not answer", place="")
    run_state = SimpleNamespace(run="r", live_tasks=lambda: [task])
    jobs = SimpleNamespace(of=lambda *_: {EffectKind.KEEP: failed})
    (first,) = notes.look(run_state, jobs, [], 10.0)
    assert "saving is tried again: the store does not answer" in first.message
    task.try_at = None  # it is being tried
    assert [notes.look(run_state, jobs, [], at) for at in (20.0, 40.0)] == [[], []]


def test_what_keeps_a_model_from_being_saved_is_told_in_full_once_and_then_shortly():
    """It was a paragraph every three minutes, and each minute where two reasons took turns."""
    notes = JobNotes(SimpleNamespace(left_s=lambda: None))
    task = SimpleNamespace(
        experiment="main", number=0, attempt=1, key=("main", 0), state=State.SAVING, try_at=5.0
    )
    run_state = SimpleNamespace(run="r", live_tasks=lambda: [task])
    told = []
    for at in range(0, 1200, 30):
        what = ("timed out", "the store does not answer")[at % 60 // 30]
        error = f"{what} in {at}.5s, after {at // 60} retries. Look at its server and the network"
        failed = SimpleNamespace(done=True, error=error, place="")
        jobs = SimpleNamespace(of=lambda *_, failed=failed: {EffectKind.KEEP: failed})
        told += [note.message for note in notes.look(run_state, jobs, [], 1000.0 + at)]
    assert sum("This costs nothing: `trainmaster cancel r` ends it" in each for each in told) == 2
    assert told[2:4] == [
        "still not saved after 4 min 30 s: the store does not answer in 270.5s, after 4 retries",
        "still not saved after 7 min 30 s: the store does not answer in 450.5s, after 7 retries",
    ]
    assert len(told) == 8


def test_what_keeps_checkpoints_from_the_store_is_told_once_however_often_it_is_tried():
    notes = JobNotes(SimpleNamespace())
    task = SimpleNamespace(
        experiment="main", number=0, attempt=1, key=("main", 0), state=State.RUNNING, try_at=None
    )
    run_state = SimpleNamespace(run="r", live_tasks=lambda: [task])
    told = []
    for folder in ("files-70f449c3", "files-9d56b3b1"):
        error = (
            f"Cannot write file:///store/checkpoints/r/main/0/000003/{folder}/c1: No space left on device."
        )
        job = SimpleNamespace(done=True, error=error)
        jobs = SimpleNamespace(of=lambda *_, job=job: {EffectKind.CHECKPOINT: job})
        told += notes.look(run_state, jobs, [attempt_id("r", "main", 0, 1)], 0.0)
    assert len(told) == 1
