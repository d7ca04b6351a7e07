"""Shell completion scripts, generated from one schema of everything that can be typed."""
