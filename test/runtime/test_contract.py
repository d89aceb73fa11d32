"""Buffers in one allocation, versions, and stages that run when they are due."""

import pytest
import torch

from flashrt_ros.runtime.contract import Buffers, Contract, ContractError, Rate, Stage

CPU = torch.device("cpu")


def small_buffers():
    buffers = Buffers()
    buffers.declare("x0", (2, 3), torch.float32, Rate.STEP)
    buffers.declare("pixels", (5, 7, 3), torch.uint8, Rate.OBSERVATION, staged=True)
    buffers.declare("table", (4,), torch.float32, Rate.CHECKPOINT)
    buffers.declare("text", (3,), torch.bfloat16, Rate.INSTRUCTION)
    buffers.mark("view")
    return buffers


def test_buffers_are_aligned_slices_of_one_allocation_in_order_of_rate():
    buffers = small_buffers()
    buffers.allocate(CPU)
    assert buffers.nbytes == 4 * 256  # each one smaller than an alignment
    base = buffers["table"].data_ptr()
    places = [buffers[name].data_ptr() - base for name in ("table", "text", "pixels", "x0")]
    assert places == [0, 256, 512, 768]
    assert buffers["pixels"].shape == (5, 7, 3)
    assert buffers["text"].dtype == torch.bfloat16
    assert not buffers["x0"].any()


def test_retained_is_the_range_of_instruction_and_observation():
    buffers = small_buffers()
    buffers.allocate(CPU)
    buffers["text"].fill_(1.0)
    buffers["pixels"].fill_(3)
    kept = buffers.retained.clone()
    assert len(kept) == 512
    for name in ("text", "pixels", "table", "x0"):
        buffers[name].fill_(9)
    buffers.retained.copy_(kept)
    assert (buffers["text"] == 1).all()
    assert (buffers["pixels"] == 3).all()
    assert (buffers["table"] == 9).all()
    assert (buffers["x0"] == 9).all()


def test_misuse_is_named():
    buffers = small_buffers()
    with pytest.raises(ContractError, match="'view': declared twice"):
        buffers.mark("view")
    with pytest.raises(ContractError, match="'empty': expected sizes above 0"):
        buffers.declare("empty", (0, 2), torch.float32, Rate.STEP)
    buffers.allocate(CPU)
    with pytest.raises(ContractError, match="'late': declared after"):
        buffers.declare("late", (1,), torch.float32, Rate.STEP)
    with pytest.raises(ContractError, match="once"):
        buffers.allocate(CPU)
    with pytest.raises(ContractError, match="'pixel': expected one of"):
        buffers["pixel"]
    with pytest.raises(ContractError, match="'table': expected one of"):
        buffers.host("table")
    with pytest.raises(ContractError, match=r"stage 'a': unknown names \['nothing'\]"):
        Contract(buffers, [Stage("a", Rate.STEP, ("nothing",), ())])


@pytest.fixture
def chain():
    buffers = small_buffers()
    buffers.allocate(CPU)
    stages = [
        Stage("see", Rate.OBSERVATION, ("pixels",), ("view",)),
        Stage("encode", Rate.OBSERVATION, ("view", "text"), ("x0",)),
    ]
    return buffers, Contract(buffers, stages)


def update(contract, log):
    for stage in contract.stages:
        contract.update(stage.name, lambda name=stage.name: log.append(name))


def test_a_stage_runs_when_what_it_reads_moved(chain):
    buffers, contract = chain
    log = []
    update(contract, log)
    update(contract, log)
    assert log == ["see", "encode"]
    buffers.touch("text")
    update(contract, log)
    assert log[2:] == ["encode"]
    buffers.touch("pixels")
    update(contract, log)
    assert log[3:] == ["see", "encode"]
    buffers.touch("table")
    update(contract, log)
    assert len(log) == 5
    assert contract.ran == {"see": 2, "encode": 3}
    assert contract.reused == {"see": 3, "encode": 2}


def test_a_stage_that_fails_stays_due(chain):
    buffers, contract = chain
    update(contract, [])

    def fails():
        raise RuntimeError("planted")

    buffers.touch("pixels")
    with pytest.raises(RuntimeError, match="planted"):
        contract.update("see", fails)
    assert contract.due("see")
    log = []
    update(contract, log)
    assert log == ["see", "encode"]


def test_an_adopted_stage_makes_its_readers_due(chain):
    buffers, contract = chain
    update(contract, [])
    buffers.touch("pixels")
    contract.adopt("see")
    log = []
    update(contract, log)
    assert log == ["encode"]


def test_versions_that_were_set_back_never_meet_a_later_one_again(chain):
    buffers, contract = chain
    update(contract, [])
    versions, memory = buffers.versions(), contract.memory()
    buffers.touch("pixels")
    later = buffers.version("pixels")
    update(contract, [])
    buffers.restore_versions(versions)
    contract.restore_memory(memory)
    log = []
    update(contract, log)
    assert log == []
    buffers.touch("pixels")
    assert buffers.version("pixels") > later
