"""An experiment: all steps of ``fusetk run`` for one config, from raw text to the report.

Each step that computes is a command of fusetk in a process of its own. So memory is released
between the steps, several devices can work on a step, and the user can repeat each printed command.
"""

STEPS = ("prep", "train", "average", "decode", "score", "report")
