"""Tools for assistants (Model Context Protocol): `tools`, and `sdk_server` in front of them."""
