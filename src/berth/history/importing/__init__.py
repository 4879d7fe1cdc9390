"""What other systems recorded, into the history."""
