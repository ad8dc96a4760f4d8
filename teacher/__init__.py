"""Full-precision teachers: double DQN on Atari games, imported agents, their policies and scores."""
