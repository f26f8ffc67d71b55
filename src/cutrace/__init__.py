"""cutrace."""
