"""What `functional_rb.testing` says where hypothesis is missing."""

import sys

sys.modules["hypothesis"] = None  # type: ignore[assignment]  # so that it cannot be imported
import functional_rb  # noqa: E402  # needs none

try:
    import functional_rb.testing  # noqa: F401  # asked for
except ImportError as error:
    print(error)
