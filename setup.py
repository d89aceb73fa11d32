"""The ROS-free core as an ordinary Python package: `pip install .`. The ROS package is built by CMakeLists.txt."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
manifest = ElementTree.parse(root / "package.xml").getroot()
readme = root / "README.md"

packages = find_packages(include=["flashrt_ros", "flashrt_ros.*"], exclude=["flashrt_ros.nodes*"])
kernels = ["kernels", *(f"kernels.{name}" for name in find_packages("kernels"))]

setup(
    name=manifest.findtext("name"),
    version=manifest.findtext("version"),
    description="Vision-language-action policies for ROS 2, every action's observation age measured",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    author="flashrt_ros maintainers",
    author_email="maintainers@flashrt-ros.invalid",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=[
        *packages,
        *(f"flashrt_ros.{name}" for name in kernels),
        "flashrt_ros.config",
        "flashrt_ros.checkpoints",
    ],
    package_dir={
        "flashrt_ros.kernels": "kernels",
        "flashrt_ros.config": "config",
        "flashrt_ros.checkpoints": "checkpoints",
    },
    package_data={
        "flashrt_ros.config": ["**/*"],
        "flashrt_ros.checkpoints": ["**/*"],
        "flashrt_ros.offline": ["*.css"],
    },
    entry_points={"console_scripts": ["flashrt = flashrt_ros.cli:main"]},
    install_requires=[
        "numpy>=1.21",
        "opencv-python-headless>=4.5,<5",
        "pillow>=9",
        "pyyaml>=5.4",
        "safetensors>=0.4",
        "sentencepiece>=0.1.99",
        "tokenizers>=0.20",
        "torch>=2.5",
    ],
    extras_require={
        "bags": ["rosbags>=0.11", "tqdm>=4.60"],
        # Ray spreads replays over machines; nobody needs it for one.
        "cluster": ["ray[default]>=2.9"],
        "kernels": ["triton>=3.4; platform_system == 'Linux'"],
        # Tables that pandas, DuckDB and Spark read without parsing; the CSV files hold the same.
        "parquet": ["pyarrow>=14"],
        "plots": ["matplotlib>=3.5"],
        "sim": ["mujoco>=3.1"],
        "test": ["hypothesis>=6.100", "pytest>=8"],
    },
)
