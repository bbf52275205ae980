"""The cost of a training before it starts: operations, memory, hours and money."""
