"""From the integer net to neurosynaptic cores: mapper, core simulator, Lava, exports, verification."""
