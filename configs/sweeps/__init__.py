"""Recipes of ``spikestill sweep``: which stages, over which options."""
