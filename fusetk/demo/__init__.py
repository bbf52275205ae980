"""The demo: a corpus from a grammar, a small model that fuses its layers, and a page of results."""
