"""The lock of a run folder: which process holds it, and whether that process is running."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from lipformer.errors import UsageError
from lipformer.runs.folder import recorded
from lipformer.runs.lock import LOCK, identify, lock_holder, release_lock, take_lock, this_process
from lipformer.runs.outcome import Outcome, read_outcome


class TestLock:
    def test_it_is_there_while_the_job_goes(self, tmp_path):
        with recorded(tmp_path, "train"):
            assert lock_holder(tmp_path) == this_process()
            outcome = read_outcome(tmp_path)
            assert (outcome.status, outcome.reason) == ("running", str(this_process()))
        assert {path.name for path in tmp_path.iterdir()} == {"status.json", "train.log"}
        assert read_outcome(tmp_path).status == "finished"

    def test_two_runs_do_not_share_a_folder(self, tmp_path):
        take_lock(tmp_path)
        with pytest.raises(UsageError, match=f"{tmp_path} is in use by process {os.getpid()} on "):
            take_lock(tmp_path)
        release_lock(tmp_path)
        take_lock(tmp_path)

    @pytest.mark.parametrize("host", ["here", "elsewhere"])
    def test_only_the_lock_of_this_process_or_of_one_that_has_gone_is_released(self, tmp_path, host):
        file = tmp_path / LOCK
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        holder = replace(identify(child.pid), **({} if host == "here" else {"host": host}))
        file.write_text(json.dumps(asdict(holder)))
        release_lock(tmp_path)
        if host == "here":
            release_lock(tmp_path, holder)
        assert lock_holder(tmp_path) == holder
        child.communicate(b"\n")
        release_lock(tmp_path, replace(holder, started="long ago"))
        assert lock_holder(tmp_path) == holder
        release_lock(tmp_path, holder)
        assert not file.exists()

    def test_a_process_that_goes_and_one_that_has_ended(self):
        assert this_process().is_alive()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert replace(this_process(), pid=child.pid).is_alive() is False, "another process, which began later"
        child.communicate(b"\n")
        assert replace(this_process(), pid=child.pid).is_alive() is False

    def test_a_process_that_nobody_has_waited_for_is_gone(self):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps(vars(this_process())).encode())
            os._exit(0)
        told = type(this_process())(**json.loads(os.read(read, 10_000)))
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert told.is_alive() is False
        os.waitpid(child, 0)

    @pytest.mark.parametrize(
        ("other", "alive"), [({"host": "elsewhere"}, None), ({"boot": "before"}, False), ({"space": "container"}, None)]
    )
    def test_what_cannot_be_known_from_here(self, other, alive):
        assert replace(this_process(), **other).is_alive() is alive

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": "x"}', '{"pid": 1, "host": null}'])
    def test_a_broken_lock_tells_nothing(self, tmp_path, content):
        Outcome("running", None).write(tmp_path)
        (tmp_path / LOCK).write_text(content)
        assert lock_holder(tmp_path) is None
        assert read_outcome(tmp_path) == Outcome("running", None)

    def test_a_run_on_another_machine_goes_as_far_as_is_known(self, tmp_path):
        Outcome("running", None).write(tmp_path)
        (tmp_path / LOCK).write_text(json.dumps({**vars(this_process()), "host": "node7"}))
        assert read_outcome(tmp_path) == Outcome("running", None, f"process {os.getpid()} on node7")

    def test_a_run_that_ends_while_one_looks_is_not_killed(self, tmp_path, monkeypatch):
        Outcome("running", None).write(tmp_path)

        def ended(folder):
            Outcome().write(folder)
            return replace(this_process(), started="long ago")

        monkeypatch.setattr("lipformer.runs.outcome.lock_holder", ended)
        assert read_outcome(tmp_path).status == "finished"


@pytest.mark.parametrize("pid", ["7", 7.5, float("inf"), True, None, [1]])
def test_a_lock_that_is_none_names_no_process(tmp_path, pid):
    (tmp_path / LOCK).write_text(json.dumps({**asdict(this_process()), "pid": pid}))
    assert lock_holder(tmp_path) is None


def test_a_process_that_the_system_hides_is_not_called_dead(monkeypatch):
    """Mounted with hidepid, /proc shows each user their own processes alone."""

    def deny(pid, number):
        assert number == 0
        raise PermissionError

    other = replace(this_process(), pid=2**22 + 1)
    assert other.is_alive() is False
    monkeypatch.setattr(os, "kill", deny)
    assert other.is_alive() is None
