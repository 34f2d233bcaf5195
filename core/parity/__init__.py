"""Parity between machines that never meet: traces of op calls, recorded on one backend and replayed on another."""
