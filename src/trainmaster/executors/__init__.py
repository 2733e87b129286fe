"""Start, observe and stop gangs of processes on a given cluster."""
