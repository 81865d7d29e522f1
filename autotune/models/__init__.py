"""Model families, presets and weights."""
