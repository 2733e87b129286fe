"""Machines of any cloud that Infrastructure Manager (IM) knows, by its REST API: none of its code is used."""
