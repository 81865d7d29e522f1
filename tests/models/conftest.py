"""Fixtures of the model tests."""

import pytest
import torch.distributed as dist


@pytest.fixture
def single_process_group(tmp_path):
    """A real process group of one rank, found through a file: no port is needed."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
