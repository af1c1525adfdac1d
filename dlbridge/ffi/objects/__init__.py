"""Objects of the library as Python objects: containers, registered types, modules."""
