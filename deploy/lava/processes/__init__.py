"""Our Lava Processes. Lava executes every module beside a Process's: keep them free of side effects."""
