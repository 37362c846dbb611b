"""The planner beside measured runs: how far `trireme plan` is from step times and memory that others published.

usage: planner.py [--binary PATH] [--rows FILE.tsv] [--json]

Without --rows, the tables of tests/plan/data, each three times: with the constants of the data sheet, with each model left out of
the fit of its constants, and with constants fitted to the rows themselves (which says how well the model can fit, and is no
score); then the time of whole searches. With --rows, that table with the constants of the data sheet; --json prints one line
{rows: [{id, predicted_step_s, measured_step_s, error}], skipped: [{id, why}], mape, ...}. Columns: docs/plan.md.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

PROJECT = pathlib.Path(__file__).resolve().parents[1]
TABLES = PROJECT / "tests" / "plan" / "data"
SEARCHES = [("llama3-8b", 512), ("llama3-70b", 2048), ("llama3-405b", 16384), ("deepseek-v3", 2048)]
WAYS = {"data sheet": [], "model left out": ["--leave-model-out"], "fitted to the rows": ["--fit"]}


def plan(binary, *arguments):
    result = subprocess.run([binary, "plan", *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr.strip() or f"{binary} plan ended with code {result.returncode}")
    return result.stdout


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def show_tables(binary):
    print(f"{'rows of':<44} {'constants':<20} {'rows':>5} {'mean':>8} {'most':>8} {'spearman':>9} {'one MFU':>8}")
    for table in sorted(TABLES.glob("*.tsv")):
        for way, flags in WAYS.items():
            for name, stack in json.loads(plan(binary, "--rows", table, "--json", *flags))["stacks"].items():
                rank = "-" if stack["spearman"] is None else f"{stack['spearman']:.2f}"
                print(f"{name:<44} {way:<20} {stack['rows']:>5} {percent(stack['mape']):>8} {percent(stack['max']):>8} {rank:>9} "
                      f"{percent(stack['best_constant_mfu_mape']):>8}")
        for row in json.loads(plan(binary, "--rows", table, "--json"))["memory"]:
            print(f"  memory of {row['id']:<50} {row['measured_gib']:.1f} GiB measured, {row['predicted_gib']:.1f} planned "
                  f"({100 * row['error']:+.1f} %), {row['verdict']}")


def show_searches(binary):
    print(f"\n{'search':<44} {'seconds':>8}")
    for model, gpus in SEARCHES:
        start = time.perf_counter()
        plan(binary, "--model", model, "--hardware", "h100-sxm", "--gpus", gpus, "--json")
        print(f"{f'{model} on {gpus} h100-sxm':<44} {time.perf_counter() - start:>8.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=PROJECT / "build" / "trireme")
    parser.add_argument("--rows")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.rows:
        print(plan(arguments.binary, "--rows", arguments.rows, *(["--json"] if arguments.json else [])), end="")
    elif arguments.json:
        parser.error("--json needs --rows")
    else:
        show_tables(arguments.binary)
        show_searches(arguments.binary)


if __name__ == "__main__":
    main()
