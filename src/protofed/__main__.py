"""``python -m protofed`` is ``protofed``."""

from protofed.cli import main

main()
