"""Pages of the HTML report and of ``inspect --html``."""
