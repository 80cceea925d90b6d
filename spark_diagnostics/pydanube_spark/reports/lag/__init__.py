"""The consumer-lag report: what every subscription had to read, hour by hour."""
