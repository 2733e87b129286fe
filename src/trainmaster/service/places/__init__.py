"""Recipes that name several providers: which of them a run takes, and what each of them would take."""
