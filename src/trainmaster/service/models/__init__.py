"""Models of runs: which are meant, their files, whether all are there."""
