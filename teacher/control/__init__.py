"""Continuous control: MuJoCo tasks, replay, SAC and DDPG in any number format."""
