"""`python -m r2r2` is `r2r2`."""

import sys

from r2r2.use.cli import main

sys.exit(main())
