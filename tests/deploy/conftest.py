"""Tests of what deploy/ holds. They run by `make test-deploy`, which installs helm and kubernetes-validate."""

import os

if not os.environ.get("DEPLOY_TESTS"):
    collect_ignore_glob = ["test_*.py"]
