"""Local training: a client's visit, and the executors that schedule visits."""
