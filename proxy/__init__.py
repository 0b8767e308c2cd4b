"""The process: HTTP, config, routing, fleet, ledger, telemetry, admin, CLI."""
