"""Published data sets: where their files are, and how raw text is made from them.

Each file of ``sets`` describes one data set. Corpora that are not public, or whose files cannot be
fetched, are read from a folder of the user.
"""
