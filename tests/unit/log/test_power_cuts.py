"""A power cut at every moment of a store's life: nothing that was acknowledged is lost, whatever the disk may lose."""

import logging
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from muster.errors import MusterError
from muster.log import FsyncPolicy
from tests.support.power import RecordingDisk, cuts
from tests.support.power_story import COMPACTION, DELETION, KEYED, MIXED, PLAIN, RESTARTS, Life, check

pytestmark = pytest.mark.slow

STORIES = [MIXED, COMPACTION, RESTARTS, DELETION]
STEPS = 25
HISTORIES = 14


@pytest.fixture
def folder():
    """In memory if there is such a file system: many small files are created and deleted."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    logging.disable(logging.ERROR)
    yield path
    logging.disable(logging.NOTSET)
    shutil.rmtree(path)


def first_life(folder, seed, fsync=FsyncPolicy.ALWAYS, leave_out=None):
    root = fresh(folder / "first")
    disk = RecordingDisk(root, leave_out)
    life = Life(root, fsync, disk)
    rng = random.Random(seed)
    scripts = (roll_after_a_restart, compact_again_and_again, make_anew)
    kind = seed % (len(STORIES) + len(scripts))
    if kind < len(STORIES):
        life.live(rng, STEPS, STORIES[kind])
    else:
        scripts[kind - len(STORIES)](life, rng)
    life.store.close(clean=False)
    return disk, life


def roll_after_a_restart(life, rng):
    """The indexes of a segment are replaced although nothing was added to it since the shutdown."""
    for _ in range(3):
        life.append(PLAIN, rng)
    life.restart(clean=True)
    for _ in range(6):
        life.append(PLAIN, rng)
    life.flush()


def compact_again_and_again(life, rng):
    """A compacted segment is included in the next run, with its neighbours."""
    for _ in range(5):
        while True:
            life.append(KEYED, rng)
            if life.store.logs[KEYED].segments[-1].size > 380 and rng.random() < 0.5:
                break
        life.flush()
        life.keep_house()
        life.append(KEYED, rng)  # if it rolls, the next run takes one more without another flush
        life.keep_house()


def make_anew(life, rng):
    """The deleted topic was durable, and the one that replaces it has its name."""
    for _ in range(4):
        for _ in range(rng.randint(2, 6)):
            life.append(PLAIN, rng)
        life.flush()
        life.delete(PLAIN)  # no checkpoint names it, so no checkpoint is written, which would sync the names as well
        life.append(PLAIN, rng)


def second_life(folder, seed, fsync=FsyncPolicy.ALWAYS, leave_out=None):
    """Starts from what a power cut has left of a first life."""
    before, former = first_life(folder, seed, fsync)
    rng = random.Random(seed)
    moments = rng.sample(range(before.now // 4, before.now + 1), 1)
    cut = rng.choice(list(cuts(before, rng, moments=moments)))
    root = fresh(folder / "second")
    cut.lay_out(root)
    written = {where: was.copy(cut.at) for where, was in former.written_by(cut.at).items()}
    disk = RecordingDisk(root, leave_out)
    life = Life(root, fsync, disk, written)
    life.live(rng, 6, RESTARTS)
    life.store.close(clean=False)
    return disk, life


def fresh(root):
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return root


def hold(folder, lived, rng, **which):
    disk, life = lived
    held = set()
    for cut in cuts(disk, rng, **which):
        # Many moments leave the same and promise the same: data that was not synced is lost, whatever its amount.
        if (case := (cut.key(), life.asked(cut.at))) not in held:
            cut.lay_out(folder / "cut")
            check(folder / "cut", life, cut.at)
            held.add(case)


@pytest.mark.parametrize("fsync", [FsyncPolicy.ALWAYS, FsyncPolicy.INTERVAL])
@pytest.mark.parametrize("seed", range(7))
def test_nothing_promised_is_lost(folder, seed, fsync):
    hold(folder, first_life(folder, seed, fsync), random.Random(seed), each=1)


@pytest.mark.parametrize("fsync", [FsyncPolicy.ALWAYS, FsyncPolicy.INTERVAL])
@pytest.mark.parametrize("seed", range(8))
def test_a_second_cut_brings_nothing_back_that_the_first_took(folder, seed, fsync):
    hold(folder, second_life(folder, seed, fsync), random.Random(seed), each=1)


@pytest.mark.interpreted
def test_no_sync_is_needless(folder):
    """Each sync is left out in turn, and something that was promised is lost."""
    lives = [(live, seed) for seed in range(HISTORIES) for live in (first_life, second_life)]
    sites: dict[str, list[tuple[Any, int]]] = {}
    for live, seed in lives:
        for site in live(folder, seed)[0].sites:
            sites.setdefault(site, []).append((live, seed))
    unnoticed = [site for site, where in sites.items() if not any(is_noticed(folder, site, *one) for one in where)]
    assert len(sites) > 14
    assert unnoticed == []


def is_noticed(folder, site, live, seed):
    rng = random.Random(seed)
    try:
        disk, life = live(folder, seed, leave_out=site)
        hold(folder, (disk, life), rng, each=3, moments=disk.risky())
    except (AssertionError, MusterError, OSError):
        return True
    return False
