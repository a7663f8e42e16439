"""Run the command line with `python -m egoloader`."""

from egoloader.cli import main

main()
