"""Speed, each figure beside a peer's in the same run."""
