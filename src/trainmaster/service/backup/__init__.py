"""A home and its database in one file, and back."""
