"""The mapper's passes: lower, prune, tile, replicate, place, route, emit; each returns a new object."""
