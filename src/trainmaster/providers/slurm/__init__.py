"""A cluster that Slurm shares out: an allocation of its nodes is what is rented."""
