"""What is measured, one module each: the floor, the relay, and whatever a user would pick instead."""
