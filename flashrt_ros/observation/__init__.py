"""Frames, synchroniser, timeline and age arithmetic. Imports neither ROS nor torch."""
