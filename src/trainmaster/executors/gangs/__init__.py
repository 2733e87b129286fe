"""What becomes of a gang whose members have several parents. Pure: no clock, no loop, no Ray."""
