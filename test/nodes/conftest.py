import pytest


@pytest.fixture
def graph(tmp_path):
    from .graph import Graph

    made = Graph(tmp_path)
    yield made
    made.close()


@pytest.fixture
def drivers(graph):
    from .graph import Drivers

    made = Drivers(graph)
    yield made
    made.stop()
