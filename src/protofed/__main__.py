"""Entry point of ``python -m protofed``, which is the same as ``protofed``."""

from protofed.cli.main import main

main()
