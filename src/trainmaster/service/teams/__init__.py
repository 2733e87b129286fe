"""What belongs to a team: its runs, machines, volumes, secrets, budget, and its turn."""
