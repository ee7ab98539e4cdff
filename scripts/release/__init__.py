"""The release check: what `nox -s release` does. One noun a file; session.py lists the checks."""
