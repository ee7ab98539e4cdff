"""Faults that are planted on purpose in a copy of the tree, and the tests that have to see them."""
