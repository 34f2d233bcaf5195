"""Training of the small model: `python -m tools.train_nano.<module>` from the repository root."""
