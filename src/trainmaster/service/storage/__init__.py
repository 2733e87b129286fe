"""What lies where and takes room: which runs need it, and how it goes."""
