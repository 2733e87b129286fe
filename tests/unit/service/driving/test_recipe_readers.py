"""What strangers send is read by a process with limits, and gives the same as here."""

import json
import os
import signal
import subprocess
import threading

import pytest

from trainmaster.service.driving import recipe_worker
from trainmaster.service.driving.recipe_readers import MAX_BYTES, RecipeReaders, Workers
from trainmaster.service.users.caller import TooOftenError
from trainmaster.service.users.rates import Rates
from trainmaster.spec import Recipe
from trainmaster.spec.errors import RecipeError, UsageError

RECIPE = """
name: job
env: {A: "1"}
data: {pets: {dir: .}}
experiments:
  main: {command: 'echo {{x}}', parameters: {x: [1, 2.5, a]}, env: {B: "2"}}
  after: {command: 'true', after: main, hardware: {gpus: 1}}
"""


@pytest.fixture(scope="module")
def workers():
    found = Workers()
    yield found
    found.close()


def flat(count):
    return "name: x\nexperiments:\n" + "".join(f"  e{at}: {{command: a}}\n" for at in range(count))


def refusal(readers, text, provider=None):
    with pytest.raises(UsageError) as caught:
        readers.read(text, "/", provider, "ann")
    return caught.value


def test_a_recipe_and_its_mistakes_are_those_that_are_read_here(workers, tmp_path):
    readers = RecipeReaders(workers)
    there = readers.read(RECIPE, str(tmp_path), "aws", "ann")
    assert there == Recipe.from_text(RECIPE, directory=tmp_path, provider="aws")
    assert readers.read(RECIPE, str(tmp_path), None, None).provider == "local"
    wrong = "name: x\nexperiments:\n  a: {comand: x}\n  b: {command: x, after: c}\n"
    with pytest.raises(RecipeError) as here:
        Recipe.from_text(wrong)
    found = refusal(readers, wrong)
    assert isinstance(found, RecipeError)
    assert found.mistakes == here.value.mistakes
    assert "provider" in str(refusal(readers, RECIPE, "a: b: c"))


def test_a_large_recipe_is_refused(workers):
    readers = RecipeReaders(workers)
    assert len(readers.read(flat(1000), "/", None, "ann").experiments) == 1000
    assert "1,001 experiments, and a server takes 1,000" in str(refusal(readers, flat(1001)))
    assert "more than 100 KiB" in str(refusal(readers, "#" * MAX_BYTES + RECIPE))


def test_what_takes_too_much_ends_without_its_process(workers):
    shared = "".join(f"  X{at}: 1\n" for at in range(5000))  # five million variables when it is written out
    readers = RecipeReaders(workers)
    assert "takes the time or memory to read" in str(refusal(readers, f"env:\n{shared}{flat(1000)[8:]}"))
    assert readers.read(RECIPE, "/", None, "ann").name == "job"


def test_a_process_that_was_killed_is_replaced(workers, monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*args, **kwargs):
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    workers = Workers()
    readers = RecipeReaders(workers)
    readers.read(RECIPE, "/", None, "ann")
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait()
    assert readers.read(RECIPE, "/", None, "ann").name == "job"
    assert len(started) == 2
    workers.close()  # it ends when nobody can ask any more, as after a kill of the server
    assert started[1].returncode == 0


class Slow:
    """Workers that answer when they may."""

    def __init__(self, cpu_s=0.0):
        self.cpu_s, self.asked, self.may, self.begun = (
            cpu_s,
            [],
            threading.Semaphore(0),
            threading.Semaphore(0),
        )
        self.at_once, self.most = 0, 0

    def ask(self, asked):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.asked.append(json.loads(asked)["text"])
        self.begun.release()
        self.may.acquire()
        self.at_once -= 1
        return json.dumps(recipe_worker.read(json.loads(asked))).encode(), self.cpu_s


def test_one_at_a_time_is_read_for_a_user_and_few_wait():
    workers = Slow()
    readers = RecipeReaders(workers)
    asking = [threading.Thread(target=readers.read, args=(RECIPE, "/", None, "ann")) for _ in range(3)]
    for thread in asking:
        thread.start()
    workers.begun.acquire()
    while sum(readers._asked.values()) < 3:  # the others have come, too
        pass
    with pytest.raises(TooOftenError, match="other recipes are read"):
        readers.read(RECIPE, "/", None, "ann")
    other = threading.Thread(target=readers.read, args=(RECIPE, "/", None, "bob"))
    other.start()
    workers.begun.acquire()  # nobody waits for another one's recipes
    workers.may.release(4)
    for thread in (*asking, other):
        thread.join()
    assert workers.most == 2
    assert len(workers.asked) == 4
    assert not readers._asked
    assert not readers._turns


def test_cpu_time_is_charged_to_the_user_and_not_to_others():
    workers, now = Slow(cpu_s=3.0), [0.0]
    workers.may.release(10)
    readers = RecipeReaders(workers, Rates(0.5, 5.0, lambda: now[0], told="a share"))
    for _ in range(2):
        readers.read(RECIPE, "/", None, "ann")
    with pytest.raises(TooOftenError, match="more than a share") as caught:
        readers.read(RECIPE, "/", None, "ann")
    assert caught.value.retry_after_s == 2.0
    readers.read(RECIPE, "/", None, "bob")
    readers.read(RECIPE, "/", None, None)  # the server goes on with what it took before
    now[0] += 2.0
    readers.read(RECIPE, "/", None, "ann")
