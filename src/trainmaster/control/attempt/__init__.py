"""What is done for an attempt before its members start and after they have ended."""
