"""A driver on the first rented machine of a run: handed over, read from here, taken back."""
