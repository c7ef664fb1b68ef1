"""Tests of the files in deploy/. `make test-deploy` runs them, and installs helm and kubernetes-validate."""

import os

if not os.environ.get("DEPLOY_TESTS"):
    collect_ignore_glob = ["test_*.py"]
