"""The pytest plugin of cutrace."""
