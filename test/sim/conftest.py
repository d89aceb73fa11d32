import sys
from pathlib import Path

# For closed_loop.py, which the tests of this folder share.
sys.path.insert(0, str(Path(__file__).parent))
