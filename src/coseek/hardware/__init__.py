"""Hardware: devices, and the fastest arithmetic on this machine, which resolves `auto` in settings."""
