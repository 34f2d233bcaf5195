"""A backend of Tandem whose memory the host cannot read."""
