"""Machines of an OpenStack: Nova's servers, by REST alone."""
