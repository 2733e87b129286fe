"""What members run in: containers of docker and podman, and sandboxes of Unix users."""
