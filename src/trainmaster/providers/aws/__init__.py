"""Amazon EC2, and whatever speaks its API, such as the lab."""
