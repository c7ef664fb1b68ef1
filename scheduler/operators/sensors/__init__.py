"""The sensors. DAG files import them from `scheduler.sensors`."""
