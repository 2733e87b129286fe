"""Files and data on the nodes of a cluster: brought there, mounted, published from there, removed."""
