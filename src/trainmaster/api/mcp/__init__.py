"""Tools for assistants (Model Context Protocol): what they do in `tools`, how they are reached in `door`."""
