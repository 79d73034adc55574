"""``protofed demo``: two federations side by side, live."""
