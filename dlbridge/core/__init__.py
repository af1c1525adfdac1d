"""The inside of dlbridge, by what happens to a tensor. Anything in here may move."""
