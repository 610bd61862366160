"""The console command, and what surrounds a run that it starts."""

from parsgd.cli.console import main

__all__ = ["main"]
