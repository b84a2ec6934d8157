"""`python -m korch`: the same as the command `korch`."""

from korch.cli import main

main()
