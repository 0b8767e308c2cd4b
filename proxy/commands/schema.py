"""``warmroute schema``: print what a configuration file may hold."""

import argparse
import json


class SchemaCommand:
    """Print the JSON Schema of the configuration file."""

    name = "schema"
    help = "print the JSON Schema of the configuration"
    description = "Print the JSON Schema of the configuration file."
    examples = """examples:
  warmroute schema > warmroute.schema.json
  check-jsonschema --schemafile warmroute.schema.json config.yaml
  warmroute schema --markdown | less
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "--markdown",
            action="store_true",
            help="print the reference to read instead",
        )

    def run(self, options: argparse.Namespace) -> int:
        """Print it."""
        if options.markdown:
            from warmroute.proxy.config.reference import markdown

            print(markdown(), end="")
        else:
            from warmroute.proxy.config.schema import json_schema

            print(json.dumps(json_schema(), indent=2))
        return 0
