"""An HDFS on the nodes of a run: its daemons, and what brings data from an object store into it."""
