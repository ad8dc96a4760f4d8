"""Double DQN on Atari games (van Hasselt 2016): environments, replay, learners, training."""
