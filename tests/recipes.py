"""Recipes that several tests run."""

SHORT_RUN = """
record: {frames: 320, num_envs: 4, flush_every: 128}
distill: {steps: 4, batch_size: 8, log_steps: 2}
map: {anneal_seconds: 0.2}
verify: {frames: 4, naive_frames: 1, lava_frames: 0, stock_frames: 0}
play: {seconds: 1, view: none}
evaluate: {episodes: 1, num_envs: 1, compare: false}
"""
"""A whole pipeline on next to nothing."""
