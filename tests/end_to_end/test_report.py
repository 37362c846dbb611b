"""`trireme report`: the page is well-formed, and its curves are the numbers of metrics.jsonl."""

import re
import xml.etree.ElementTree as ElementTree

from harness import BAD_INPUT, DONE, EndToEnd, main

SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"


class ReportTest(EndToEnd):
    def figures(self, page):
        root = ElementTree.fromstring(page.read_text())
        return {figure.find(f"{HTML}figcaption").text.strip(): figure.find(f"{SVG}svg") for figure in root.iter(f"{HTML}figure")}, root

    def curve(self, path):
        return [tuple(map(float, point.split())) for point in re.split("[ML]", path.get("d"))[1:]]

    def test_curves_are_the_metrics(self):
        settings = {"metrics.interval": 1, "data.eval_path": self.held_out, "eval.interval": 5, "train.steps": 20}
        runs = [self.trained(self.new_run(f"<{rate}> & more"), 1, {**settings, "optimizer.lr": rate}) for rate in (0.01, 0.003)]
        page = self.new_folder("page") / "compare.html"
        result = self.call("report", *[run.folder for run in runs], "--out", page)
        self.assertEqual(result.code, DONE, str(result))
        figures, root = self.figures(page)
        for title, key in {"Training loss": "loss", "Gradient norm": "grad_norm", "Held-out text": "eval_bits_per_byte"}.items():
            with self.subTest(title):
                curves = [self.curve(path) for path in figures[title].iter(f"{SVG}path") if path.get("class") == "line"]
                told = [[(line["step"], line[key]) for line in run.lines() if key in line] for run in runs]
                self.assertEqual([len(curve) for curve in curves], [len(points) for points in told])
                # One scale for both runs: every coordinate is the same linear function of its number.
                pairs = [(p, q) for curve, points in zip(curves, told) for p, q in zip(curve, points)]
                for axis in (0, 1):
                    low, high = min(pairs, key=lambda pair: pair[1][axis]), max(pairs, key=lambda pair: pair[1][axis])
                    slope = (high[0][axis] - low[0][axis]) / (high[1][axis] - low[1][axis])
                    self.assertGreater(slope * (1 if axis == 0 else -1), 0)
                    for p, q in pairs:
                        self.assertAlmostEqual(p[axis], low[0][axis] + slope * (q[axis] - low[1][axis]), delta=0.11)
        text = " ".join(root.itertext())
        self.assertIn("optimizer.lr", text)  # the option that differs, and no other
        self.assertNotIn("optimizer.beta1", text)
        self.assertIn(f"{min(line['eval_bits_per_byte'] for line in runs[0].lines() if 'eval_loss' in line):.4f}", text)

    def test_one_run_has_its_page_in_its_folder(self):
        run = self.trained(self.new_run("alone"), 1, {"train.steps": 3, "lr_schedule.warmup_steps": 1})
        self.assertEqual(self.call("report", run.folder).code, DONE)
        self.assertIn("Training loss", self.figures(run.folder / "report.html")[0])

    def test_what_cannot_be_drawn(self):
        empty = self.new_folder("empty")
        (empty / "metrics.jsonl").write_text("no json\n{}\n")
        missing = self.new_folder("missing")
        self.assert_refused(self.call("report", empty, missing, missing / "nowhere"), empty, "no line to draw", missing / "metrics.jsonl",
                            "nowhere", code=BAD_INPUT)


if __name__ == "__main__":
    main()
