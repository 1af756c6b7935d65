"""The command line, one file per command; `main` starts it."""

from time2decide.cli.entry import main

__all__ = ["main"]
