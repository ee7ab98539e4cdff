"""The session fuzz: builds the fuzz targets of every parser, runs them, and keeps what they find."""
