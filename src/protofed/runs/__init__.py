"""Run directories: what a run leaves behind, as typed records that are written and read by the same classes.

Nothing that a file says is trusted: sizes are limited before anything is reserved, every value is checked, and an
error is one line that names the file. Nothing here needs torch.
"""
