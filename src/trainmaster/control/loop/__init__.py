"""The loop over a run: what it observes, holds in memory, and has done."""
