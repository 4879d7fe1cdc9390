"""Models of interference fitted to measurements, and judged by them."""
