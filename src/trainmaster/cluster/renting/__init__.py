"""From what a recipe asks for, and what is offered, to the machines to rent. Pure."""
