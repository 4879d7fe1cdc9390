"""Rules that ship with berth."""
