"""README's example of a DAG in Airflow, as it is printed there."""

import re
from pathlib import Path

README = Path(__file__).parents[3] / "README.md"
(CODE,) = re.findall(r"(?ms)^```python\n(.*?)^```$", README.read_text())
exec(CODE)
