"""What can go wrong with a lab.

* TrainmasterError
  + LabError                 the kernel, a tool or the daemon refused; exit code 1
"""

from __future__ import annotations

from trainmaster.spec.errors import TrainmasterError


class LabError(TrainmasterError):
    """The kernel, a tool or the lab's daemon refused."""
