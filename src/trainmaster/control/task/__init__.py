"""What a task is: its gang, its environment, its directories, and what its jobs know."""
