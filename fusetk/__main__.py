"""``python -m fusetk`` is ``fusetk``."""

from fusetk.cli.main import main

main()
