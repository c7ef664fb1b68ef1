"""Statements of a worker: claim, report, suspend, XComs, progress. Each is guarded by the dispatch ID."""
