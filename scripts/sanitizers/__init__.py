"""The sanitizer builds: their run-time options, their reports, and the proof that they find what is planted."""
