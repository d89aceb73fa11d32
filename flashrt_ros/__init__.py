"""Vision-language-action policies for ROS 2, with the age of every action's observation measured."""

from pkgutil import extend_path

# Python started in the checkout finds this folder first, which has neither the generated messages nor kernels/:
# those come from the installed package further down sys.path.
__path__ = extend_path(__path__, __name__)
