"""Search for translations with trained models, and text in, text out."""
