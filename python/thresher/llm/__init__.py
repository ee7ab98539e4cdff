"""Language models: load, generate, chat, serve."""
