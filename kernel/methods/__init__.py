"""What the kernel answers on the bus: ``kernel.*``."""
