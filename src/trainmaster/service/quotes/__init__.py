"""From a recipe to what it will take and cost, and how that turned out."""
