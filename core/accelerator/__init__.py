"""What backends of devices with memory and queues of their own have in common; nothing here knows a vendor."""
