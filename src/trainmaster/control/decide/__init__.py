"""What follows from what was observed. Pure."""
