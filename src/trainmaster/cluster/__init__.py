"""Clusters: what is rented for the experiments of a run, how it becomes nodes, and how it is given back."""
