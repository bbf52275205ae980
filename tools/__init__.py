"""Commands for this repository: generators of its pages and pictures, and analyses of models."""
