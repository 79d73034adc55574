"""``protofed ui``: run directories in the browser, finished or still being written."""
