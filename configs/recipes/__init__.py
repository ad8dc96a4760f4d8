"""Recipes (YAML) that ``--config`` takes by name."""
