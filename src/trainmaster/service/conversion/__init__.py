"""Documents of other tools that describe clusters, turned into recipes. Pure."""
