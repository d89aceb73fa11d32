"""Vision-language-action policies for ROS 2, with the age of every action's observation measured."""
