"""Commands that maintain the repository: the manual pages and the picture of the layout."""
