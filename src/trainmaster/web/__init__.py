"""Pages for phones and desks: thin, rendered here, on the same functions as REST."""
