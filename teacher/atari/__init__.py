"""Q-learning on Atari games, double DQN (van Hasselt 2016) and PQN: environments, replay, learners, training."""
