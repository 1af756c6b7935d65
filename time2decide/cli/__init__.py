"""The command line, one file per command; `main` starts it."""

from time2decide.cli.app import main

__all__ = ["main"]
