"""Services of runs as callers see them."""
