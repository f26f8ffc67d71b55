"""``python -m cutrace``."""

from .cli import main

main()
