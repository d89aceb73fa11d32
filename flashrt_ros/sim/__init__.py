"""MuJoCo world, tasks and the scripted expert."""
