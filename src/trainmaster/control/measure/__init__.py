"""How fast a task is: profiling attempts, progress, measurements."""
