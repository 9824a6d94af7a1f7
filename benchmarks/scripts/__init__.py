"""Scripts that measure, alone or beside other libraries, and that draw. They are not installed."""
