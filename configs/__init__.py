"""Options of every command, hardware limits and recipes."""
