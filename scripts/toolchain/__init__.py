"""What the nox sessions do: environments, native dependencies, the wheel, formatting and linting."""
