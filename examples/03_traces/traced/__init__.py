"""The parts of the tracing example."""
