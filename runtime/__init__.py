"""Sessions in real time: emulator, agents, telemetry, display, recording, evaluation."""
