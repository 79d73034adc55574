"""Pages on the user's own machine: the live demonstration, and runs as they are and as they grow."""
