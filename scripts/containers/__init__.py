"""Container images of the build, and what runs inside them."""
