"""Where a supervisor that was started before an upgrade from 0.2.0 looks for `supervisor.enclosures`."""

import sys

from trainmaster.executors.supervisor import enclosures

sys.modules[__name__] = enclosures
