"""The machines of a run, what they cost and what is to be expected, before any is had."""
