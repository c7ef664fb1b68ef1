"""The model behind docs/explanation/scale.md, and the command that fits it to a benchmark result and computes the page's tables."""
