"""Files to start from: ``protofed new method NAME``."""
