"""The verbs by the file that has them, with the words of the overview. Nothing is imported, so `--help` is quick."""

GROUPS = {
    "runs": {
        "run": "run a recipe",
        "resume": "continue an interrupted run, or prolong one",
        "model": "write a model of a finished run for other programs",
        "report": "write the report of runs again",
        "verify": "check that the files of runs belong together",
    },
    "pages": {
        "watch": "show runs on a live page in the browser",
    },
    "trackers": {
        "export": "hand runs on to TensorBoard, W&B or MLflow, or write tables",
    },
    "traces": {
        "trace": "make, describe and draw links whose rates vary in time",
    },
    "sweeps": {
        "demo": "compare FedGMR with its ablation, FedAvg and FedAsync (minutes)",
        "compare": "run several methods and seeds and compare them",
        "sweep": "run a grid of settings, methods and seeds; what is done already is not repeated",
    },
    "paper": {
        "table": "a table of the paper: runs what is missing, prints ours, the paper's and the difference",
        "results": "write the document of results from the runs in a directory",
    },
    "deploy": {
        "deploy": "run a recipe on a fleet of Flower nodes",
    },
    "start": {
        "list": "methods, tasks, fleets and recipes",
        "doctor": "what this machine has for runs, and what is broken",
        "completion": "let the shell complete verbs, options, recipes and recipe keys",
    },
    "catalogue": {
        "data": "which data sets are there, and what to put where for the others",
        "show": "print the resolved recipe",
        "inspect": "a model's channels, levels, widths, parameters and bytes by method",
        "schema": "print the JSON schema of recipes, for editors",
    },
}
HELP = {verb: words for verbs in GROUPS.values() for verb, words in verbs.items()}
