"""Sweeps: trials of a chain of stages, on a Ray cluster."""
