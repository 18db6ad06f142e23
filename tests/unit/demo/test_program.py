"""A program for Spark and the demo that runs it: real processes, with a demo that only reads and closes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from muster.demo.run.processes import Process
from tests.support.peers import find_java, require

PATIENCE_S = 120

TALKS = """
import os
from muster.demo.run.program import Program

program = Program()
os.system("printf 'CodeCache is full'")  # as the JVM prints: a line, or a part of one, on what it has inherited
print("and so does Python, ", end="", flush=True)
program.say({"event": "ready"})
for command in program.commands():
    os.system("printf '{'")
    program.say({"event": command["do"]})
"""
FAILS = """
from muster.demo.run.program import Program
from muster.errors import ConfigError

with Program():
    raise ConfigError("Java is missing")
"""
IS_BUSY = """
import threading
from muster.demo.run import program

program.PATIENCE_S = 0.1
program.Program().say({"event": "ready"})
threading.Event().wait()  # as a query waits for a broker that has gone
"""
LOSES_ITS_JVM = """
import os, signal
from muster.demo.run.program import Program, Reporter
from muster.spark import session

program = Program()
spark = session("loses its JVM", "local[1]", spark_ui_enabled=False)
rows = spark.readStream.format("rate").load().writeStream.format("noop").queryName("rows").start()
Reporter([rows], program.say)
spark.sparkContext._gateway.proc.kill()
for command in program.commands():
    pass
"""


@pytest.mark.slow
async def test_what_others_print_does_not_reach_the_demo(tmp_path: Path) -> None:
    process = await Process.start("a program", ["-c", TALKS], tmp_path / "log")
    try:
        assert json.loads(await process.read_line(PATIENCE_S)) == {"event": "ready"}
        await process.say(json.dumps({"do": "finish"}))
        assert json.loads(await process.read_line(PATIENCE_S)) == {"event": "finish"}
        await process.close_input()
        assert await process.next_line() is None
        assert process.ending == "exit code 0"
        assert (tmp_path / "log").read_text() == "CodeCache is fulland so does Python, {"
    finally:
        await process.kill()


@pytest.mark.slow
async def test_a_program_says_what_ended_it(tmp_path: Path) -> None:
    process = await Process.start("a program", ["-c", FAILS], tmp_path / "log")
    try:
        assert json.loads(await process.read_line(PATIENCE_S)) == {"event": "failed", "error": "Java is missing"}
        assert await process.next_line() is None
        assert process.ending == "exit code 1"
        assert "Traceback" in (tmp_path / "log").read_text()
    finally:
        await process.kill()


@pytest.mark.slow
async def test_a_program_ends_with_the_demo_whatever_it_does(tmp_path: Path) -> None:
    process = await Process.start("a program", ["-c", IS_BUSY], tmp_path / "log")
    try:
        await process.read_line(PATIENCE_S)
        await process.close_input()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.next_line() is None
    finally:
        await process.kill()


@pytest.mark.slow
async def test_a_program_without_its_jvm_says_so(tmp_path: Path) -> None:
    require("Java 17 or newer", find_java(), "Spark runs on it")
    process = await Process.start("a program", ["-c", LOSES_ITS_JVM], tmp_path / "log")
    try:
        failed = json.loads(await process.read_line(PATIENCE_S))
        assert failed["event"] == "failed"
        assert "cannot get the progress of the queries from Spark" in failed["error"]
    finally:
        await process.kill()
