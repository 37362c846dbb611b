"""`trireme plan`: the file that it writes trains as it is, and what does not fit ends with its own code."""

import json

from harness import BAD_INPUT, CONFIG, DOES_NOT_FIT, DONE, EndToEnd, main


class PlanTest(EndToEnd):
    def test_the_written_file_trains(self):
        best = self.new_folder("plan") / "best.toml"
        planned = self.call("plan", CONFIG, "--hardware", "a100", "--gpus", 2, "--search", "--json", "--write", best,
                            "--set", f"data.path={self.data}", "--set", "data.eval_path=")
        self.assertEqual(planned.code, DONE, str(planned))
        self.assertTrue(json.loads(planned.out)["fits"])
        run = self.new_run("planned")
        trained = self.call("train", best, "--workers", 2, "--set", f"run.dir={run.folder}", "--set", "train.stop_after=2",
                            "--set", "metrics.interval=1")
        self.assertEqual(trained.code, DONE, str(trained))
        self.assert_no_step_twice(run, 2)

    def test_codes(self):
        large = ("plan", "--model", "llama3-405b", "--hardware", "h100-sxm", "--gpus", 8)
        self.assertEqual(self.call(*large).code, DOES_NOT_FIT)
        self.assert_refused(self.call("plan", "--model", "llama3-8b", "--hardware", "h100-smx", "--gpus", 8), "h100-sxm", code=BAD_INPUT)


if __name__ == "__main__":
    main()
