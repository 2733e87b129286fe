"""What drives runs, here and on servers, and what another server needs to go on with them."""
