"""The statements of a worker: claim, report, suspend, XComs, progress. Each is conditional on the dispatch ID."""
