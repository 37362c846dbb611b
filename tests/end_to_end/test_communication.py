"""What workers exchange: who is behind is told after a failure and on request; a slower link changes times and no number."""

import json
import os
import pathlib
import signal
import socket

from harness import BAD_INPUT, DONE, STOPPED, WORKER_FAILED, EndToEnd, environment, main, wait_until

LONG = {"train.steps": 1_000_000, "checkpoint.interval": 10, "train.precision": "fp32"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class CommunicationTest(EndToEnd):
    def training(self, run, settings=()):
        started = self.start_train(run, 2, {**LONG, **dict(settings)})
        wait_until(lambda: run.last_step() >= 3 or started.process.poll() is not None, f"step 3 of {run.folder}")
        self.assertIsNone(started.process.poll(), started.err())
        return started

    def dumps(self, run):
        return sorted(run.folder.glob("flight/dump-*.json"))

    def test_after_a_kill_the_record_of_every_worker_is_there(self):
        run = self.new_run("killed")
        started = self.training(run)
        pids = started.worker_pids()
        os.kill(pids[1], signal.SIGKILL)
        result = started.wait()
        self.assert_refused(result, f"trireme inspect {run.folder} --flight", self.dumps(run)[0], code=WORKER_FAILED)
        dump = json.loads(self.dumps(run)[0].read_text())
        self.assertIn("rank 1", dump["why"])
        self.assertEqual([(rank["rank"], rank["pid"]) for rank in dump["ranks"]], [(0, pids[0]), (1, pids[1])])
        for rank in dump["ranks"]:
            self.assertIn("all_reduce", {operation["operation"] for operation in rank["operations"]})
            self.assertEqual({operation["axis"] for operation in rank["operations"]} - {"world", "data", "replicate"}, set())
        shown = self.call("inspect", run.folder, "--flight", "--last", 3)
        self.assertEqual(shown.code, DONE, str(shown))
        self.assertIn(f"rank 1 (pid {pids[1]} on ", shown.out)
        self.assertIn("axis data, ranks 0, 1", shown.out)
        self.assertIn("all_reduce(sum, F32 x ", shown.out)
        as_json = self.call("inspect", run.folder, "--flight", "--json")
        self.assertEqual(len(json.loads(as_json.out)["ranks"]), 2, str(as_json))

    def test_on_request_while_the_run_goes_on(self):
        run = self.new_run("asked")
        started = self.training(run)
        rank_1 = started.worker_pids()[1]
        os.kill(rank_1, signal.SIGSTOP)  # for less than the launcher bears with
        wait_until(lambda: pathlib.Path(f"/proc/{rank_1}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "the stop", 1)
        started.send(signal.SIGUSR2)
        dump = wait_until(lambda: self.dumps(run), "the dump")[0]
        os.kill(rank_1, signal.SIGCONT)
        before = run.last_step()
        wait_until(lambda: run.last_step() > before + 2, "more steps")
        ranks = json.loads(wait_until(dump.read_text, "the text"))["ranks"]
        self.assertEqual(ranks[1]["process"], "stopped")
        started.send(signal.SIGTERM)
        started.wait()
        self.assertIn(f"flight recorder: {dump}", started.err())

    def test_a_worker_of_another_launcher_is_asked_itself(self):
        run = self.new_run("asked worker")
        run.folder.parent.mkdir(exist_ok=True)
        port = free_port()
        ranks = [self.start(*self.train_arguments(run, None, LONG),
                            env=environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2"))
                 for rank in (0, 1)]
        wait_until(lambda: run.last_step() >= 3 or ranks[0].process.poll() is not None, "step 3")
        ranks[1].send(signal.SIGUSR2)
        dump = wait_until(lambda: self.dumps(run), "the dump")[0]
        self.assertEqual([rank["rank"] for rank in json.loads(wait_until(dump.read_text, "the text"))["ranks"]], [0, 1])
        for rank in ranks:
            rank.send(signal.SIGTERM)
        for rank in ranks:
            self.assertEqual(rank.wait().code, STOPPED, rank.err())

    def test_without_a_recorder(self):
        run = self.trained(self.new_run("none"), 2, {"train.steps": 2, "comm.flight_recorder": 0})
        result = self.call("inspect", run.folder, "--flight")
        self.assert_refused(result, "holds no flight recorders", "comm.flight_recorder")

    def test_a_slower_link_and_checks_change_no_number(self):
        settings = {"train.steps": 10, "lr_schedule.steps": 10, "train.precision": "fp32"}
        plain = self.trained(self.new_run("plain"), 2, settings)
        for name, more in {"link": {"comm.emulate.replicate.gb_per_s": 0.05, "comm.emulate.replicate.latency_us": 2000},
                           "hardware": {"comm.emulate.replicate.hardware": "h100-sxm"},
                           "shapes": {"comm.check": "shapes"}, "all": {"comm.check": "all"}}.items():
            with self.subTest(name):
                other = self.trained(self.new_run(name), 2, {**settings, **more})
                self.assert_same_run(plain, other)
                if name == "link":
                    # Ten steps with at least one sum of gradients of two steps of the ring, 2 ms each: what no machine undercuts.
                    exposed = sum(line["comm_exposed_s"] for line in other.steps())
                    self.assertGreater(exposed, 10 * 2 * 0.002 * 0.5)

    def test_links_that_make_no_sense_are_refused(self):
        for settings, texts in [({"comm.emulate.replicate.hardware": "h100-smx"}, ["h100-smx", "h100-sxm"]),
                                ({"comm.emulate.replicate.hardware": "h100-sxm", "comm.emulate.replicate.gb_per_s": 5}, ["leave one out"]),
                                ({"comm.emulate.replicate.gb_per_s": -1}, ["comm.emulate.replicate.gb_per_s"]),
                                ({"comm.emulate.replicate.bandwidth": 5}, ["comm.emulate.replicate.bandwidth", "did you mean comm.emulate.replicate."]),
                                ({"comm.check": "everything"}, ["comm.check", "shapes"])]:
            run = self.new_run("refused")
            self.assert_refused(self.train(run, 2, settings), *texts, code=BAD_INPUT)
            self.assertFalse(run.folder.exists())


if __name__ == "__main__":
    main()
