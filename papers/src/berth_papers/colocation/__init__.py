"""Co-location on one GPU: chapter V of Oh's thesis."""
