"""Entry point of ``python -m protofed``, which is the same as ``protofed``."""

from protofed.cli import main

main()
