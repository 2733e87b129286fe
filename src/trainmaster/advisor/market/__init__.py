"""What can be rented for a job, and what it costs."""
