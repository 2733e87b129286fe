"""What is said to the user while a run goes on."""
