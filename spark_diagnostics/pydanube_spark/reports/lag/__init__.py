"""The consumer-lag report: the lag of every subscription, hour by hour."""
