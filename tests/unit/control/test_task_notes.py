"""What is said of attempts that show no sign of work."""

from pathlib import Path
from types import SimpleNamespace

from trainmaster.control.decide.effects import Policy
from trainmaster.control.notes.task_notes import TOLD_AFTER_S, SilenceNotes


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
