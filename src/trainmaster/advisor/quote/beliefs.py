"""Beliefs about time that is not training: preparing, losing machines. Those about a provider are its own."""

from __future__ import annotations

from typing import Final

from trainmaster.spec.log_normal import LogNormal

#: Our own part of a run, most of it before its first task: reading, accepting, starting. On two cores.
OVERHEAD_S: Final = LogNormal(0.5, 0.5)
#: From the end of a run's last task to its own end; measured on two cores, of 78 runs on this machine.
ENDING_S: Final = LogNormal(0.05, 0.7)
#: Our own part of one task.
TASK_OVERHEAD_S: Final = LogNormal(0.05, 0.7)
#: Preemptions of one spot node per hour: from next to none to one in three hours.
PREEMPTIONS_PER_HOUR: Final = LogNormal(0.03, 1.1)
#: Seconds that a checkpoint costs the training, and that a restart needs beside renting again.
CHECKPOINT_S: Final = LogNormal(2.0, 0.8)
RESTART_S: Final = LogNormal(60.0, 0.6)
#: Share of runs that replace a slow machine where they may; seconds until its members have stopped.
CHANGES: Final = 0.1
STOPPING_S: Final = 5.0
#: Share of the training that validation takes where no epoch was seen to end.
UNSEEN_PAUSES: Final = LogNormal(0.02, 0.9)
#: Seconds for which a network card with credits goes at full speed: 5 to 60 minutes (AWS' documentation).
NIC_CREDIT_S: Final = LogNormal(1000.0, 0.75)
#: Seconds from the start of the members to the first step where it was not measured.
STARTUP_UNSEEN_S: Final = 10.0
STARTUP_UNSEEN_SPREAD: Final = 0.9
#: How much a start-up elsewhere differs from the measured one: cold caches, another disk.
STARTUP_ELSEWHERE: Final = LogNormal(1.5, 0.5)
