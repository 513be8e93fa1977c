"""Found by every Python that a test starts: lets Spark's processes import the PySpark that is installed.

Spark puts ``pyspark.zip`` before it, the same files without their compiled form, and each of Spark's many Python
processes would spend half a second of computing on compiling them again.
"""

import os
import sys

_zips = [entry for entry in sys.path if entry.endswith(os.path.join("python", "lib", "pyspark.zip"))]
if _zips and any(os.path.exists(os.path.join(entry, "pyspark", "__init__.py")) for entry in sys.path):
    sys.path[:] = [entry for entry in sys.path if entry not in _zips]
