"""A SuperNode whose messages are answered by processes that have loaded everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'protofed[flower]'")

from conftest import REPOSITORY
from deployment import BIN
from protofed.apps.flower.warm import run
from protofed.errors import ConfigError


def environment():
    source = f"{REPOSITORY / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": source}


def warm(*command):
    words = [sys.executable, "-m", "protofed", "deploy", "warm", *command]
    return subprocess.Popen(
        words,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_the_program_of_a_message_is_loaded_already():
    """What the command starts finds another ``flwr-clientapp``, which says what Flower's says."""
    script = 'echo "$FLWR_SUPEREXEC_TASK_POLL_INTERVAL"; flwr-clientapp --help; flwr-clientapp --insecure; exit 7'
    process = warm("sh", "-c", script)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 7
    assert text.startswith("0.1\n")
    assert "Run a Flower ClientApp" in text
    assert "--runtime-api-address" in text
    assert "error: one of the arguments --token --token-file is required" in text


@pytest.mark.slow
def test_the_command_ends_with_its_node():
    process = warm("sleep", "100")
    time.sleep(8)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode not in (0, None)


def test_a_command_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="expected the command of a SuperNode, not 'no-such-program x'"):
        run(["no-such-program", "x"])
