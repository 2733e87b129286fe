"""Earlier name of `containers`: a supervisor of the version before imports it when it first needs it."""

from trainmaster.executors.containers import *  # noqa: F403
