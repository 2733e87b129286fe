"""All errors that are raised on purpose, as ``from trainmaster.errors import RecipeError`` finds them."""

from trainmaster.spec.errors import *  # noqa: F403
