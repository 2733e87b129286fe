"""What a server does for a team that may take long, and is asked for as quotes are."""
