"""How a command ends: exit codes, one line on standard error, no traceback, whatever the shell does to it."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from time2decide.cli import app as app_module

INTERRUPTED = "time2decide: interrupted; no file is half-written\n"
RESUMABLE = "time2decide: interrupted; what is stored is kept, start the same command again to resume\n"
LIST = [sys.executable, "-m", "time2decide.cli", "backtest", "--strategies", "list"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_a_signal_ends_any_command_in_one_line(run, tmp_path, monkeypatch, number, code):
    def interrupted():
        signal.raise_signal(number)

    def turned_into_an_error():  # as extension modules do that are being imported
        try:
            signal.raise_signal(number)
        except BaseException:
            raise ImportError("something failed to import") from None

    for command in (interrupted, turned_into_an_error):
        monkeypatch.setattr(app_module, "run_command", command)
        for name, told in (("decide", INTERRUPTED), ("reproduce", RESUMABLE)):
            done = run(name, cwd=tmp_path)
            assert (done.returncode, done.stdout, done.stderr) == (code, "", told)


def test_an_interrupt_that_python_cannot_pass_on_ends_the_command_too(tmp_path):
    code = (
        "import signal\nfrom time2decide.cli import app, entry\n"
        "class Callback:\n    def __del__(self):\n        signal.raise_signal(signal.SIGINT)\n"
        "def run():\n    Callback()\n    print('went on', flush=True)\n    return 0\n"
        "app.run_command = run\nentry.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", INTERRUPTED)


def test_a_reader_that_goes_away_is_told_by_the_exit_code_alone():
    for command in (LIST, [*LIST[:3], "reproduce", "list"]):  # plain text, and a table of rich
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def test_an_output_that_is_full_or_closed():
    with open("/dev/full", "w") as full:
        done = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "time2decide: output: No space left on device\n")
    closed = ["bash", "-c", '"$@" >&-', "closed", *LIST[:3], "reproduce", "list"]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_port_that_is_in_use_is_refused(run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        done = run("serve", "--port", port, cwd=tmp_path)
    expected = f"time2decide: port: expected one to listen on, found 127.0.0.1:{port} (Address already in use)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)
