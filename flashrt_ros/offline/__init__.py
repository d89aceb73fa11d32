"""Bags and logs in, evaluation and reports out."""
