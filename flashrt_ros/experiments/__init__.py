"""The closed-loop comparisons of age, precision and steps."""
