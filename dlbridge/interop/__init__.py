"""Arrays of other libraries and interfaces, in and out: one file for each."""
