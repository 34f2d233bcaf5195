"""Other engines on the same machine, each in an environment of its own that is made when asked."""
