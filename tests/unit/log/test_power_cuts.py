"""A power cut at every moment of a store's life: nothing that was promised is lost, whatever the disk may lose."""

import logging
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from muster.log import FsyncPolicy
from tests.support.power import RecordingDisk, cuts
from tests.support.power_story import Life, check

SEEDS = range(3)
STEPS = 30


@pytest.fixture
def folder():
    """In memory where there is such a place: many small files come and go."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    logging.disable(logging.ERROR)
    yield path
    logging.disable(logging.NOTSET)
    shutil.rmtree(path)


def recorded(root, seed, fsync, leave_out=None):
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    disk = RecordingDisk(root, leave_out)
    life = Life(root, fsync, disk)
    life.live(random.Random(seed), STEPS)
    life.store.close(clean=False)
    return disk, life


@pytest.mark.parametrize("fsync", [FsyncPolicy.ALWAYS, FsyncPolicy.INTERVAL])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_promised_is_lost(folder, seed, fsync):
    disk, life = recorded(folder / "data", seed, fsync)
    for cut in cuts(disk, random.Random(seed), each=1):
        cut.lay_out(folder / "cut")
        check(folder / "cut", fsync, life.written_by(cut.at), cut.at, life.clock)
