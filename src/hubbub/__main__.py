"""`python -m hubbub` is the command `hubbub`."""

from hubbub.cli import main

main(prog_name="hubbub")
