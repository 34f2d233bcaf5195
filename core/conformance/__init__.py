"""Whether a backend keeps the contract: every op against an independent derivation, and the checks around it."""
