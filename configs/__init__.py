"""Typed configuration, hardware limits, provenance and recipes: the ground floor, imported by every stage."""
