"""What is looked at before anything starts."""
