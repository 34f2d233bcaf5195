"""The backend contract: types, op table, Backend surface, selection."""
