"""Policy session: warm start, replanning, splicing, safety. Never imports ROS."""
