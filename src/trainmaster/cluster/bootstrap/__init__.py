"""What makes a host a node on which a supervisor can start: the runtime package, and where it is put."""
