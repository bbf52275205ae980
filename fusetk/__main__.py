"""Run the ``fusetk`` command by ``python -m fusetk``."""

from fusetk.cli.main import main

main()
