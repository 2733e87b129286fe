"""Who uses a server: users, teams, tokens, roles, and how they log in."""
