"""Ways out to other people's simulators and hardware: RANC, NIR, lava-dl's netx."""
