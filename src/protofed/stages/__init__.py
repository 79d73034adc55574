"""What stands between validated uploads and a method: one package per purpose, with stages of one protocol."""
