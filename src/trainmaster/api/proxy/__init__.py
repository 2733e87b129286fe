"""The proxy in front of apps, on an origin of its own."""
