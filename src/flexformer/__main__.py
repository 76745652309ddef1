"""`python -m flexformer` is the `flexformer` command."""

import sys

from flexformer.cli.main import main

sys.exit(main())
